"""Trials of a model: made-up questions under every kind of change, long rows, and full packs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anchorscope.engine.batches import Budget
from anchorscope.engine.check.stock import distance, edits_for, stock_states
from anchorscope.engine.decode import (
    DecodedBatch,
    Prefix,
    Trunk,
    grow_trunk,
    read_prefix,
    write_answers,
)
from anchorscope.engine.interventions import Intervention, TokenPositions
from anchorscope.engine.kv_cache import GrowingCache
from anchorscope.engine.layout import Layout, first_position
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits import PackProof, bounds_within, facts_of, kind_of, set_facts
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import Row, read_batch, row_for
from anchorscope.models import Model
from anchorscope.models.parts import longest_row

PREFIX, TURNS, ANSWER = 6, (9, 9, 12), 3
_ALIKE = 4  # tokens with which the first and the last turn begin
_GAP = 3  # the token of a turn that E_Q leaves out: a row then begins there, with E_Q's rest behind
_BETA = 2.0


@dataclass(frozen=True)
class Trial:
    """Three answered questions, as the engine wrote them."""

    samples: tuple[TokenPositions, ...]
    written: DecodedBatch


def prompts_for(model: Model) -> list[tuple[int, ...]]:
    """Three made-up prompts: the checks are about arithmetic, not meaning.

    Not all of them are distinct, clean or cut: the second turn differs from the first in E_Q alone,
    and the third begins like it.
    """
    generator = torch.Generator().manual_seed(0)
    low, size = _vocabulary(model)
    prefix, first, other, more = (
        tuple(torch.randint(low, size, (n,), generator=generator).tolist())
        for n in (PREFIX, *TURNS)
    )
    gap = slice(_GAP, _GAP + 1)
    second = first[:1] + other[1:_GAP] + first[gap] + other[_GAP + 1 : -2] + first[-2:]
    turns = (first, second, first[:_ALIKE] + more[_ALIKE:])
    return [prefix + turn for turn in turns]


def distinct_prompts(model: Model, tokens: int) -> list[tuple[int, ...]]:
    """Prompts that share nothing but the prefix and a first token, of so many tokens at least."""
    like, (low, size) = prompts_for(model), _vocabulary(model)
    count = len(like) * -(-tokens // (sum(TURNS) - len(TURNS)))
    return [_renamed(like[n % len(like)], n, low, size - low) for n in range(count)]


def _renamed(prompt: tuple[int, ...], number: int, low: int, words: int) -> tuple[int, ...]:
    """The prompt with its number, in words, in the place of its turn's first two tokens."""
    name = (low + number % words, low + number // words % words)
    return prompt[:PREFIX] + name + prompt[PREFIX + len(name) :]


def _vocabulary(model: Model) -> tuple[int, int]:
    """Where the tokens that the checks draw from begin and end; the first ones are special."""
    size = model.lm.config.get_text_config().vocab_size
    return size // 10, size


def answer_prompts(lease: Lease, prefix: Prefix, prompts: list[tuple[int, ...]]) -> Trial:
    """The three prompts with their greedy answers, decoded as a run decodes them."""
    never = torch.tensor([-1], device=lease.model.device)
    written = write_answers(lease, prefix, prompts, stop_ids=never, limit=ANSWER)
    samples = tuple(
        mark_positions(prompt, line.token_ids, number)
        for number, (prompt, line) in enumerate(zip(prompts, written.answers, strict=True))
    )
    return Trial(samples, written)


def mark_positions(
    prompt: tuple[int, ...], answer: tuple[int, ...], number: int, *, start: int = PREFIX
) -> TokenPositions:
    """The positions of a made-up prompt with its answer.

    E_Q is the middle of the turn but for one token: the longer it is, the more a cut must move.
    The gap in it is there for rows that leave out the keys behind it.
    """
    turn = range(start, len(prompt))
    return TokenPositions(
        id=f"check:{number}",
        ids=prompt + answer,
        answer_at=len(prompt),
        question_tokens=tuple(turn),
        exact_question=(*turn[1:_GAP], *turn[_GAP + 1 : -2]),
        exact_answer=tuple(range(len(prompt), len(prompt) + len(answer))),
    )


def interventions(model: Model) -> tuple[Intervention, ...]:
    """One intervention of every kind that a run can have."""
    heads = model.lm.config.get_text_config().num_attention_heads
    # The first half of the heads: one head of a large model moves less than rounding does.
    half = tuple((b, h) for b in range(1, model.blocks + 1) for h in range(max(1, heads // 2)))
    return (
        KNOCKOUT,
        replace(KNOCKOUT, name="single", layers="single"),
        replace(KNOCKOUT, name="window", layers=f"window:{max(2, min(6, model.blocks // 2))}"),
        replace(KNOCKOUT, name="heads", heads=half),
        replace(KNOCKOUT, name="post", where="post"),
        Intervention(name="boost", boost=_BETA),
    )


def engine_states(
    lease: Lease, trunk: Trunk, samples: tuple[TokenPositions, ...], kinds: tuple[Intervention, ...]
) -> dict[str, Tensor]:
    """States [sample, layer, width] by intervention, all through the engine in its own batches."""
    rows = [_row(lease, trunk, s, n, kind) for kind in kinds for n, s in enumerate(samples)]
    states: dict[str, list[Tensor]] = {kind.name: [torch.empty(0)] * len(samples) for kind in kinds}
    for batch, read in read_rows(lease, trunk, rows, budget=Budget.of(lease.model)):
        for row, state in zip(batch, read, strict=True):
            states[row.intervention.name][row.number] = state
    return {name: torch.stack(rows) for name, rows in states.items()}


def empty_pair(lease: Lease, trunk: Trunk, sample: TokenPositions) -> tuple[Tensor, Tensor]:
    """States with no keys to cut and with no head to cut, of rows that start alike."""
    start = _row(lease, trunk, sample, 0, KNOCKOUT).at[0]
    ids, at = sample.ids[start:], tuple(range(start, len(sample.ids)))
    bare = replace(sample, exact_question=())
    first, second = (
        read_batch(lease, trunk, [replace(_row(lease, trunk, s, 0, kind), ids=ids, at=at)])
        for s, kind in ((bare, KNOCKOUT), (sample, CLEAN))
    )
    return first, second


def _row(
    lease: Lease, trunk: Trunk, sample: TokenPositions, number: int, kind: Intervention
) -> Row:
    turn_at = len(trunk.prefix)
    return row_for(sample, number, kind, blocks=lease.model.blocks, turn_at=turn_at, seed=0)


# --- Rows longer than the model's window, and packs of many rows ---


# Arithmetic that a check may cost, in multiplications and additions: seconds on two cores.
_COST = {"cpu": 1e12, "cuda": 5e15}
_WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
_NARROW = 8
_FAR = 1 << 15  # positions beyond are not tried


def check_long(model: Model, limit: float) -> tuple[str, bool, str]:
    """Check a row that reaches beyond the smallest window or chunk: name, result, what was seen."""
    config = model.lm.config.get_text_config()
    sizes = {name: getattr(config, name, None) for name in _WINDOWS}
    windows = {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}
    name = "a row longer than the model's windows"
    if not windows:
        return name, True, "it has none"
    least = min(windows.values())
    if least + sum(TURNS) <= min(_affordable(model), longest_row(model.lm) or sys.maxsize):
        far = _long(model, least)
        tried = f"window {least}"
    else:
        with _narrowed(config, windows):
            far = _long(model, _NARROW)
        tried = f"window {least}, tried narrowed to {_NARROW}"
    return name, far < limit, f"{tried}: largest difference from stock attention {far:.1e}"


def _long(model: Model, window: int) -> float:
    """How far a knocked-out row whose turn begins behind the first window is from stock."""
    prompt = prompts_for(model)[0]
    front = prompt[:PREFIX] * (window // PREFIX + 1)
    sample = mark_positions((*front, *prompt[PREFIX:]), prompt[:3], 0, start=len(front))
    with Lease(model) as lease:
        prefix = read_prefix(lease, front)
        trunk = grow_trunk(lease, prefix, [sample.ids[: sample.answer_at]], room=0, head=False)
        states = engine_states(lease, trunk.trunk, (sample,), (KNOCKOUT,))["knockout"]
    edits = edits_for((sample,), KNOCKOUT, layer=model.blocks, heads=1)
    stock = stock_states(model, [sample.ids], edits, depth=model.blocks)
    return distance(states, stock)


def check_far(model: Model, limit: float) -> tuple[str, bool, str]:
    """Check that a row at the last positions that are read changes no row beside it.

    Rotary embeddings may depend on the length of a whole pass, and with it on other rows.
    """
    name = "a row far from the others changes none of them"
    own, longest = prompts_for(model)[0], longest_row(model.lm)
    if longest is None:
        return name, True, "it names no last position"
    last = min(longest, _FAR) - 1 - first_position(model.parts.decoder)
    near = range(len(own))
    ids = torch.tensor([own, own], device=model.device)

    def first_row(other: range) -> Tensor:
        at = torch.tensor([[*near], [*other]], device=model.device)
        memory = GrowingCache(model.blocks, len(own))
        return lease.run(ids, Layout(at, at, prefix_length=0), memory).states[0]

    with Lease(model) as lease:
        far = distance(first_row(range(last + 1 - len(own), last + 1)), first_row(near))
    return name, far < limit, f"at position {last}: by {far:.1e}"


def check_pack(model: Model, limit: float) -> tuple[str, bool, str]:
    """Check that the last row of a full pack is that row alone.

    A smaller bound is noted. Longer packs than this are tried when they come.
    """
    facts = replace(facts_of(model.lm), largest=None, pack_proof=None)
    set_facts(model.lm, facts)
    # Dearer than other checks: what is proved here, once a model, no run has to try again.
    full = min(Budget.of(model).tokens, 4 * _affordable(model))
    name = "a full pack, its last row as that row alone"
    tokens = full
    with Lease(model) as lease:
        while tokens >= PREFIX + max(TURNS):
            far = _packed(lease, tokens)
            if far < limit:
                break
            tokens //= 2
        else:
            return name, False, f"rows of a pack change each other by {far:.1e}"
    proof = proved_up_to(tokens, limit=limit)
    largest = None if tokens == full else tokens
    set_facts(model.lm, replace(facts, pack_proof=proof, largest=largest))
    if tokens == full:
        return name, True, f"{tokens:,} tokens, difference {far:.1e}"
    return name, True, f"the model looks at places in a pack: kept to {tokens:,} tokens"


def proved_up_to(tokens: int, *, limit: float) -> PackProof:
    """The proof of packs up to so many tokens; rounding moves a state by less than `limit`."""
    return PackProof(
        tokens,
        limit,
        more=lambda lease, more: _packed(lease, more) < limit,
    )


def _packed(lease: Lease, tokens: int) -> float:
    """How far the last row of a pack of so many tokens is from that row alone."""
    rows = distinct_prompts(lease.model, tokens)
    prefix = read_prefix(lease, rows[0][:PREFIX])
    pack = grow_trunk(lease, prefix, rows, room=0, head=False).last.states[-1]
    alone = grow_trunk(lease, prefix, rows[-1:], room=0, head=False).last.states[0]
    return distance(pack, alone)


def _affordable(model: Model) -> int:
    """How many tokens a check may send through the model at once."""
    weights = sum(p.numel() for p in model.lm.parameters())
    cost = _COST["cuda" if model.device.type == "cuda" else "cpu"]
    return max(64, int(cost / weights))


@contextmanager
def _narrowed(config: Any, windows: dict[str, int]) -> Iterator[None]:
    """The model with windows so small that a short row reaches beyond them."""
    try:
        for name in windows:
            setattr(config, name, _NARROW)
        yield
    finally:
        for name, size in windows.items():
            setattr(config, name, size)


# --- What a pack takes of a GPU's memory ---

# Many short rows behind a long prefix, every head of them cut after the softmax: no row of a run
# costs more for each of its tokens.


_MEASURED_TOKENS, _MEASURED_PREFIX = 1024, 1024
_OWN = 1 << 30  # bytes of a GPU that CUDA and its libraries take for themselves, about


def measure(model: Model) -> None:
    """Set the bounds of a model on a GPU; elsewhere nothing tells what a pack takes."""
    if kind_of(model) == "cuda":
        taken, tokens = trial_pack(model, peak_bytes)
        room = min(room_on(*memory) for memory in _memory(model))
        set_facts(model.lm, replace(facts_of(model.lm), bounds=bounds_within(room, taken / tokens)))


def trial_pack(model: Model, peak: Callable[[Model, Callable[[], object]], int]) -> tuple[int, int]:
    """What `peak` measures of a pass over a trial pack, and how many tokens the pack has."""
    prompt = prompts_for(model)[0]
    config = model.lm.config.get_text_config()
    longest = (longest_row(model.lm) or 4 * _MEASURED_PREFIX) // 2
    front = (prompt[:PREFIX] * _MEASURED_PREFIX)[: min(_MEASURED_PREFIX, longest)]
    sample = mark_positions((*front, *prompt[PREFIX:]), prompt[:3], 0, start=len(front))
    every = [(b, h) for b in range(1, model.blocks + 1) for h in range(config.num_attention_heads)]
    cut = Intervention(name="post", where="post", heads=tuple(every))
    with Lease(model) as lease:
        prefix = read_prefix(lease, front)
        prompts = [sample.ids[: sample.answer_at]]
        trunk = grow_trunk(lease, prefix, prompts, room=0, head=False).trunk
        row = row_for(sample, 0, cut, blocks=model.blocks, turn_at=len(front), seed=0)
        rows = [row] * max(1, _MEASURED_TOKENS // len(row.ids))
        taken = peak(model, lambda: read_batch(lease, trunk, rows))
    return taken, len(rows) * len(row.ids)


def peak_bytes(model: Model, work: Callable[[], object]) -> int:
    """The most bytes that `work` took on one GPU, without what was there before."""
    devices = _gpus(model)
    for device in devices:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    before = {device: torch.cuda.memory_allocated(device) for device in devices}
    work()
    return max(torch.cuda.max_memory_allocated(d) - before[d] for d in devices)


def room_on(total: int, held: int, free: int) -> int:
    """The bytes of a GPU that batches may use, from its size and what the model holds of it.

    Not from what is free just now: that is another number in every run, and with it could come
    other batches, which round otherwise. It counts only where another process holds half of it.
    """
    room = max(0, total - held - _OWN)
    return room if free >= room // 2 else free


def _memory(model: Model) -> list[tuple[int, int, int]]:
    """Of every GPU of a model: its bytes, those this process holds, and those that are free."""
    torch.cuda.empty_cache()
    facts = []
    for device in _gpus(model):
        free, total = torch.cuda.mem_get_info(device)
        facts.append((total, torch.cuda.memory_allocated(device), free))
    return facts


def _gpus(model: Model) -> list[torch.device]:
    devices = {p.device for p in model.lm.parameters() if p.device.type == "cuda"}
    return sorted(devices | {model.device}, key=str)
