"""Trials of a model: made-up questions under every kind of change, long rows, and full packs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anchorscope.engine.batches import (
    Budget,
    bounds_of,
    facts_of,
    kind_of,
    set_facts,
)
from anchorscope.engine.check.stock import edits_for, stock_states
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
from anchorscope.engine.packs import distance, halved, longest_right
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.engine.read import Row, read_batch, read_rows, row_for
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
    size = model.lm.config.get_text_config().vocab_size
    prefix, first, other, more = (  # the first tokens of a vocabulary are special
        tuple(torch.randint(size // 10, size, (n,), generator=generator).tolist())
        for n in (PREFIX, *TURNS)
    )
    gap = slice(_GAP, _GAP + 1)
    second = first[:1] + other[1:_GAP] + first[gap] + other[_GAP + 1 : -2] + first[-2:]
    turns = (first, second, first[:_ALIKE] + more[_ALIKE:])
    return [prefix + turn for turn in turns]


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


# --- Rows longer than the model's window, far positions, and full packs ---


_WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
_SHORT, _NARROW = 512, 8
_FAR = 1 << 15  # positions beyond are not tried
_COST = {"cpu": 4e12, "cuda": 2e16}  # tokens times weights of a tried pack: seconds on two cores


def check_long(model: Model, limit: float) -> tuple[str, bool, str]:
    """Check a row that reaches beyond the smallest window or chunk: name, result, what was seen."""
    config = model.lm.config.get_text_config()
    sizes = {name: getattr(config, name, None) for name in _WINDOWS}
    windows = {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}
    name = "a row longer than the model's windows"
    if not windows:
        return name, True, "it has none"
    least, seen = min(windows.values()), f"window {min(windows.values())}"
    if least <= _SHORT:
        far = _long(model, least)
    else:
        with _narrowed(config, windows):
            far = _long(model, _NARROW)
        seen += f", tried narrowed to {_NARROW}"
    return name, far < limit, f"{seen}: largest difference from stock attention {far:.1e}"


def _long(model: Model, window: int) -> float:
    """Compare a knocked-out row that begins after the first window with stock attention."""
    prompt = prompts_for(model)[0]
    front = prompt[:PREFIX] * (window // PREFIX + 1)
    sample = mark_positions((*front, *prompt[PREFIX:]), prompt[:3], 0, start=len(front))
    with Lease(model) as lease:
        prefix = read_prefix(lease, front)
        trunk = grow_trunk(lease, prefix, [sample.ids[: sample.answer_at]], room=0, head=False)
        states = engine_states(lease, trunk.trunk, (sample,), (KNOCKOUT,))["knockout"]
    edits = edits_for(model, (sample,), KNOCKOUT, layer=model.blocks)
    return distance(states, stock_states(model, [sample.ids], edits))


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
    facts = replace(facts_of(model.lm), largest=None, proved=None, rounding=limit)
    set_facts(model.lm, facts)
    weights = sum(weight.numel() for weight in model.lm.parameters())
    affordable = max(256, int(_COST[kind_of(model)] / weights))
    full, least = min(bounds_of(model).tokens, affordable), PREFIX + max(TURNS)
    with Lease(model) as lease:
        tokens, far = longest_right(lease, halved(full, least=least), limit)
    name = "a full pack, its last row as that row alone"
    if not tokens:
        return name, False, f"rows of a pack change each other by {far:.1e}"
    largest = None if tokens == full else tokens
    set_facts(model.lm, replace(facts, proved=tokens, largest=largest))
    if largest is None:
        return name, True, f"{tokens:,} tokens, difference {far:.1e}"
    return name, True, f"the model looks at places in a pack: kept to {tokens:,} tokens"
