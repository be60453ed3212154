"""Compare the engine with transformers' own (stock) attention on the same model.

Three made-up prompts are answered, and read under one intervention of every kind. The checks are
about arithmetic, so the tokens need no meaning.

The proof that a model passes them all is cached, in memory and on disk. It holds for these weights
and this config, on this device with these versions, and for this source of the engine. Where one of
them differs, the model is proved again. `doctor` always proves.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

import anchorscope
from anchorscope.engine.batches import Budget, ModelFacts, facts_of, kind_of, set_facts
from anchorscope.engine.check.stock import rounding, stock_pass, stock_states, stock_under
from anchorscope.engine.decode import DecodedBatch, Trunk, grow_trunk, read_prefix, write_answers
from anchorscope.engine.interventions import (
    ANSWER_ONLY,
    CLEAN,
    KNOCKOUT,
    Intervention,
    TokenPositions,
    window_of,
)
from anchorscope.engine.layout import GrowingCache, Layout, first_position
from anchorscope.engine.lease import Lease, can_fuse, distance, longest_right
from anchorscope.engine.read import read_batch, read_rows, row_for
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.parts import longest_row
from anchorscope.models.prompts import first_tokens
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.identity import versions, weights_hash
from anchorscope.run_folder.remote import cache_folder

# An intervention must move states this many times further than rounding, or nothing is proved.
_POWER = 3.0
_LOGITS = 10.0  # log-probabilities differ in size from states: they may be this much further off
_PREFIX, _TURNS, _ANSWER = 6, (9, 9, 12), 3
_ALIKE = 4  # tokens with which the first and the last turn begin
_GAP = 3  # the token of a turn that E_Q leaves out: a row then begins there, before the rest of E_Q
_WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
_NARROW = 8  # tokens of a window that a short row reaches beyond
_FAR = 1 << 15  # positions beyond are not tried
_COST = {"cpu": 4e12, "cuda": 2e16}  # tokens times weights of a tried pack: seconds on two cores
_HALF = (torch.bfloat16, torch.float16)


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and what was seen."""

    name: str
    ok: bool
    seen: str
    near: bool = False  # at least nearer to what stock attention gives than to the clean states


def check_model(model: Model) -> Iterator[Check]:
    """Check that the knockout is exact on a model, which is left as it was; raises no error.

    Args:
        model: A model from `load_model`.

    Returns:
        Each check as it is done: its name, whether it passed, and what was seen.

    Examples:
        >>> import anchorscope as anc
        >>> checks = list(anc.check_model(model))
        >>> all(check.ok for check in checks), checks[3].name, checks[3].seen
        (True, 'an empty knockout changes nothing', 'bit for bit')

    """
    set_facts(model.lm, replace(facts_of(model.lm), fused=True))
    checks: Iterable[Check] = _report(model)
    if can_fuse(model):
        checks = list(checks)
        # Where a check fails with the Triton kernels, a run goes without them.
        if not all(check.ok for check in checks):
            set_facts(model.lm, replace(facts_of(model.lm), fused=False))
            checks = _report(model)
    yield from checks


def _report(model: Model) -> Iterator[Check]:
    """Run the checks; an error counts as a failed check.

    A check that fails by half-precision rounding is repeated in float32. In half precision the
    states must still be nearer to stock attention's than to the clean ones.
    """
    try:
        doubtful = []
        for check in _checks(model):
            if check.ok or not check.near or not can_be_float32(model):
                yield check
            else:
                doubtful.append(check)
        if doubtful:
            with in_float32(model):
                exact = {check.name: check for check in _state_checks(model)}
        for check in doubtful:
            again = exact[check.name]
            seen = f"{check.seen}; in float32 on the same weights: {again.seen}"
            yield Check(check.name, again.ok, seen)
    except Exception as error:
        message = next(iter(str(error).strip().splitlines()), "no message").rstrip(".")
        seen = message if isinstance(error, UserError) else f"{type(error).__name__}: {message}"
        yield Check("its attention can be changed", False, seen)


def _checks(model: Model) -> Iterator[Check]:
    yield Check("a prompt begins as the model's files say", *first_tokens(model))
    before = _logits(model)
    limit = yield from _state_checks(model)
    yield _check_far(model, limit)
    yield _check_long(model, limit)
    yield _check_pack(model, limit)
    same = torch.equal(before, _logits(model))
    yield Check("the model is left as it was", same, "logits bit for bit" if same else "it changed")


@torch.no_grad()
def _logits(model: Model) -> Tensor:
    """The model's own logits [vocabulary] for a made-up prompt, outside of a lease."""
    tokens = torch.tensor([prompts_for(model)[0]], device=model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model.lm(tokens, use_cache=False).logits[0, -1]


# --- Answers, and states under every kind of intervention ---


def prompts_for(model: Model) -> list[tuple[int, ...]]:
    """Three made-up prompts that share tokens with equal states, both clean and cut.

    The second turn differs from the first in E_Q alone, and the third begins like the first.
    """
    generator = torch.Generator().manual_seed(0)
    size = model.lm.config.get_text_config().vocab_size
    prefix, first, other, more = (  # the first tokens of a vocabulary are special
        tuple(torch.randint(size // 10, size, (n,), generator=generator).tolist())
        for n in (_PREFIX, *_TURNS)
    )
    second = first[:1] + other[1:_GAP] + first[_GAP : _GAP + 1] + other[_GAP + 1 : -2] + first[-2:]
    turns = (first, second, first[:_ALIKE] + more[_ALIKE:])
    return [prefix + turn for turn in turns]


def positions_for(
    prompt: tuple[int, ...], answer: tuple[int, ...], *, start: int = _PREFIX
) -> TokenPositions:
    """The positions of a made-up prompt with its answer.

    E_Q is the middle of the turn but for one token: the longer it is, the more a cut must move.
    The gap tests rows that leave out the keys after it.
    """
    turn = range(start, len(prompt))
    return TokenPositions(
        id="check",
        ids=prompt + answer,
        answer_at=len(prompt),
        question_tokens=tuple(turn),
        exact_question=(*turn[1:_GAP], *turn[_GAP + 1 : -2]),
        exact_answer=tuple(range(len(prompt), len(prompt) + len(answer))),
    )


def kinds_for(model: Model) -> dict[str, Intervention]:
    """One intervention of every kind that a run can have, by the name of its check."""
    heads = model.lm.config.get_text_config().num_attention_heads
    # The first half of the heads: one head of a large model moves less than rounding does.
    half = tuple((b, h) for b in range(1, model.blocks + 1) for h in range(max(1, heads // 2)))
    window = f"window:{max(2, min(6, model.blocks // 2))}"
    return {
        "the knockout blocks what it says and nothing else": KNOCKOUT,
        "a knockout in one block": replace(KNOCKOUT, name="single", layers="single"),
        "a knockout in a window of blocks": replace(KNOCKOUT, name="window", layers=window),
        "a knockout in some heads": replace(KNOCKOUT, name="heads", heads=half),
        "a knockout after the softmax": replace(KNOCKOUT, name="post", where="post"),
        "edges reweighted before the softmax": Intervention(name="boost", boost=2.0),
    }


def engine_states(
    lease: Lease, trunk: Trunk, samples: Sequence[TokenPositions], kinds: Sequence[Intervention]
) -> dict[str, Tensor]:
    """States [sample, layer, width] by intervention, all through the engine in its own batches."""
    rows = [row_for(trunk, s, n, kind) for kind in kinds for n, s in enumerate(samples)]
    states: dict[str, list[Tensor]] = {kind.name: [torch.empty(0)] * len(samples) for kind in kinds}
    for batch, read in read_rows(lease, trunk, rows, budget=Budget.of(lease.model)):
        for row, state in zip(batch, read, strict=True):
            states[row.intervention.name][row.number] = state
    return {name: torch.stack(rows) for name, rows in states.items()}


def _state_checks(model: Model) -> Generator[Check, None, float]:
    """Check states against stock attention; returns how far rounding may move states."""
    # States from the engine.
    prompts, weights = prompts_for(model), []
    with Lease(model) as lease:
        prefix = read_prefix(lease, prompts[0][:_PREFIX])
        never = torch.tensor([-1], device=model.device)
        written = write_answers(lease, prefix, prompts, stop_ids=never, limit=_ANSWER)
        answers, trunk = [answer.token_ids for answer in written.answers], written.trunk
        samples = [positions_for(p, own) for p, own in zip(prompts, answers, strict=True)]
        # After a first pass, which refuses a model without heads and gives the reason.
        kinds = kinds_for(model)
        states = engine_states(lease, trunk, samples, (*kinds.values(), ANSWER_ONLY))
        rows = [row_for(trunk, s, n, KNOCKOUT) for n, s in enumerate(samples)]
        written_out = read_batch(lease, trunk, rows, watch=weights.append)
        # No keys to cut, and no head to cut them in.
        start = rows[0].at[0]
        at = tuple(range(start, len(samples[0].ids)))
        whole = replace(rows[0], ids=samples[0].ids[start:], at=at)
        empty = read_batch(lease, trunk, [replace(whole, keys=())])
        nowhere = read_batch(lease, trunk, [replace(whole, intervention=CLEAN)])
    yield Check(
        "its attention can be read", True, f"{model.blocks} blocks, width {model.parts.width}"
    )
    # The same states from stock attention.
    ids = [sample.ids for sample in samples]
    stock = stock_pass(model, ids)
    limit = rounding(model, ids, stock)
    clean = stock.states[torch.arange(len(ids)), [len(row) - 1 for row in ids]]
    far, unsure = decoding_errors(written, samples, stock.states, stock.logits)
    hidden = [
        distance(stock.hidden[k][0], stock.states[0, :, k - 1]) for k in range(1, model.blocks)
    ]
    far = max(far, *hidden, 0.0)
    yield Check(
        "answers and clean states are those of stock attention",
        far < limit and unsure < _LOGITS * limit,
        f"largest difference {far:.1e}, rounding allows {limit:.1e}; "
        f"of log-probabilities {unsure:.1e}",
        near=far < distance(states[KNOCKOUT.name], clean),
    )
    same = torch.equal(empty, nowhere)
    yield Check(
        "an empty knockout changes nothing", same, "bit for bit" if same else "it changes states"
    )
    for name, kind in kinds.items():
        yield against_stock(model, samples, name, kind, states[kind.name], clean, limit)
    alone = stock_states(model, [(s.ids[0], *s.ids[s.answer_at :]) for s in samples])
    far, moved = distance(states[ANSWER_ONLY.name], alone), distance(clean, alone)
    seen = f"largest difference {far:.1e}"
    yield Check("the answer alone", far < limit, seen, near=far < moved)
    cut = max(_cut_weight(trunk, n, sample, weights) for n, sample in enumerate(samples))
    yield Check("blocked edges carry no weight", cut == 0, f"largest blocked weight {cut:.1e}")
    far = distance(written_out, states[KNOCKOUT.name])
    seen = f"largest difference {far:.1e}"
    yield Check("fused and written-out attention agree", far < limit, seen)
    return limit


def decoding_errors(
    written: DecodedBatch, samples: Sequence[TokenPositions], states: Tensor, logits: Tensor
) -> tuple[float, float]:
    """Largest differences of decoded states and log-probabilities from those of whole rows."""
    far = unsure = 0.0
    for row, (sample, answer) in enumerate(zip(samples, written.answers, strict=True)):
        span = slice(sample.answer_at, len(sample.ids))
        far = max(far, distance(written.states[row], states[row, span]))
        before = slice(sample.answer_at - 1, len(sample.ids) - 1)
        theirs = torch.log_softmax(logits[row, before].float(), dim=-1)
        chosen = torch.tensor(answer.token_ids, device=theirs.device)
        ours = torch.tensor(answer.log_probs, device=theirs.device)
        off = (ours - theirs.gather(1, chosen[:, None])[:, 0]).abs().max()
        short = (theirs.amax(dim=1) - ours).abs().max()
        unsure = max(unsure, float(off), float(short))
    return far, unsure


def against_stock(
    model: Model,
    samples: Sequence[TokenPositions],
    name: str,
    kind: Intervention,
    ours: Tensor,
    clean: Tensor,
    limit: float,
) -> Check:
    """Compare one intervention with stock attention under the same change.

    A window needs a pass for each layer it is read at; for the others one pass has all layers.
    """
    window = window_of(kind.layers) is not None
    far = moved = 0.0
    for depth in sorted({min(2, model.blocks), model.blocks} if window else {model.blocks}):
        theirs = stock_under(model, samples, kind, layer=depth)
        layers = slice(depth - 1 if window else 0, depth)
        far = max(far, distance(ours[:, layers], theirs[:, layers]))
        moved = max(moved, distance(clean[:, layers], theirs[:, layers]))
    text = f"largest difference from stock attention {far:.1e}; it moves states by {moved:.1e}"
    powerless = moved <= _POWER * limit
    if powerless:
        text += f", too little to tell from rounding ({limit:.1e}): the check has no power"
    # One block of many moves less than half precision rounds, whatever the model.
    ok = far < limit and (not powerless or (window and model.dtype != torch.float32))
    # Where half precision rounds further than the cut moves, nearness says no more than rounding.
    return Check(name, ok, text, near=far < max(moved, _POWER * limit))


def _cut_weight(trunk: Trunk, row: int, sample: TokenPositions, weights: list[Tensor]) -> float:
    """The largest weight on a cut edge; keys come as prefix, trunk, then the row's own.

    `weights` are those of each block, [sample, head, query, key].
    """
    keys = torch.tensor(sample.exact_question, device=trunk.at.device)
    at = torch.isin(trunk.at[row], keys).nonzero()[:, 0] + _PREFIX
    return max(float(block[row][..., at.to(block.device)].abs().max()) for block in weights)


# --- Far positions, rows longer than the model's window, and full packs ---


def _check_far(model: Model, limit: float) -> Check:
    """Check that a row at the last positions that are read changes no row beside it.

    Rotary embeddings may depend on the length of a whole pass, and with it on other rows.
    """
    name = "a row far from the others changes none of them"
    own, longest = prompts_for(model)[0], longest_row(model.lm)
    if longest is None:
        return Check(name, True, "it names no last position")
    last = min(longest, _FAR) - 1 - first_position(model.parts.decoder)
    near = range(len(own))
    ids = torch.tensor([own, own], device=model.device)

    def first_row(other: range) -> Tensor:
        at = torch.tensor([[*near], [*other]], device=model.device)
        memory = GrowingCache(model.blocks, len(own), segmented=lease.fused)
        return lease.run(ids, Layout(at, at, prefix_length=0), memory).states[0]

    with Lease(model) as lease:
        far = distance(first_row(range(last + 1 - len(own), last + 1)), first_row(near))
    return Check(name, far < limit, f"at position {last}: by {far:.1e}")


def _check_long(model: Model, limit: float) -> Check:
    """Check a knocked-out row that begins after the model's first window or chunk.

    Windows are narrowed in the config meanwhile, so that a short row reaches beyond them.
    """
    name = "a row longer than the model's windows"
    config: Any = model.lm.config.get_text_config()
    sizes = {name: getattr(config, name, None) for name in _WINDOWS}
    windows = {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}
    if not windows:
        return Check(name, True, "it has none")
    prompt = prompts_for(model)[0]
    front = prompt[:_PREFIX] * (_NARROW // _PREFIX + 1)
    sample = positions_for((*front, *prompt[_PREFIX:]), prompt[:3], start=len(front))
    try:
        for window, size in windows.items():
            setattr(config, window, min(size, _NARROW))
        with Lease(model) as lease:
            prefix = read_prefix(lease, front)
            grown = grow_trunk(lease, prefix, [sample.ids[: sample.answer_at]])
            states = engine_states(lease, grown.trunk, [sample], [KNOCKOUT])[KNOCKOUT.name]
        far = distance(states, stock_under(model, [sample], KNOCKOUT, layer=model.blocks))
    finally:
        for window, size in windows.items():
            setattr(config, window, size)
    seen = f"window {min(windows.values())}, tried at {_NARROW} or less"
    return Check(name, far < limit, f"{seen}: largest difference from stock attention {far:.1e}")


def _check_pack(model: Model, limit: float) -> Check:
    """Check that the last row of a full pack has the same states as that row alone.

    Where only a smaller pack passes, its size is stored. Longer packs are tried before their use.
    """
    facts = replace(facts_of(model.lm), largest=None, proved=None, rounding=limit)
    set_facts(model.lm, facts)
    weights = sum(weight.numel() for weight in model.lm.parameters())
    affordable = max(256, int(_COST[kind_of(model)] / weights))
    full, least = min(Budget.of(model).tokens, affordable), _PREFIX + max(_TURNS)
    sizes = [full >> half for half in range(full.bit_length()) if full >> half > least]
    with Lease(model) as lease:
        tokens, far = longest_right(lease, sizes, limit)
    name = "a full pack, its last row as that row alone"
    if not tokens:
        return Check(name, False, f"rows of a pack change each other by {far:.1e}")
    largest = None if tokens == full else tokens
    set_facts(model.lm, replace(facts, proved=tokens, largest=largest))
    if largest is None:
        return Check(name, True, f"{tokens:,} tokens, difference {far:.1e}")
    return Check(name, True, f"the model looks at places in a pack: kept to {tokens:,} tokens")


# --- The same weights in float32, where half precision rounds too much to tell ---


def can_be_float32(model: Model) -> bool:
    """Whether all weights are half precision, not quantized, and on one device."""
    weights = list(model.lm.parameters())
    plain = getattr(model.lm, "hf_quantizer", None) is None
    whole = len({weight.device for weight in weights}) == 1 and weights[0].device.type != "meta"
    return plain and whole and all(weight.dtype in _HALF for weight in weights)


@contextmanager
def in_float32(model: Model) -> Iterator[None]:
    """Convert half-precision weights to float32 until the block ends; then restore them.

    Every bfloat16 and float16 value is a float32 value, so they are restored bit for bit.
    """
    tensors = [*model.lm.parameters(), *model.lm.buffers()]
    half = [(tensor, tensor.dtype) for tensor in tensors if tensor.dtype in _HALF]
    facts = facts_of(model.lm)
    try:
        for tensor, _ in half:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in half:
            tensor.data = tensor.data.to(dtype)
        set_facts(model.lm, facts)


# --- The proof that a model passes all checks ---


_PROVED: dict[str, ModelFacts] = {}  # by `_key`
_HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # of weights, as first seen


def require_understood(model: Model, *, weights: str | None = None) -> None:
    """Check a model once and cache the proof; raise a UserError that names the failed checks.

    `weights` is the hash of the weights, where it was computed already.
    """
    if model.server is not None:  # `doctor` compares it with transformers, if both fit
        return
    if weights is not None or model.lm not in _HASHES:
        _HASHES[model.lm] = weights or weights_hash(model.lm)
    key = _key(model)
    file = cache_folder() / "proofs" / f"{key}.json"
    facts, proved = facts_of(model.lm), _PROVED.get(key) or _stored(file)
    if proved is None:
        failed = [check for check in check_model(model) if not check.ok]
        if failed:
            seen = "; ".join(f"{check.name}: no ({check.seen})" for check in failed)
            raise UserError(
                f"{model.name} is not understood, so its numbers would mean nothing: {seen}. "
                f"`anchorscope doctor --model {model.source}` shows every check."
            )
        proved = replace(facts_of(model.lm), bounds=None)
        with suppress(OSError):  # a full or read-only cache only makes the next run prove it again
            write_atomic(file, json.dumps(asdict(proved)) + "\n")
    elif (facts.proved or 0) > (proved.proved or 0):  # longer packs were tried since
        proved = replace(proved, proved=facts.proved, largest=facts.largest)
    _PROVED[key] = proved
    set_facts(model.lm, proved)


def _stored(file: Path) -> ModelFacts | None:
    """The proof that an earlier process stored; None where there is none."""
    try:
        return ModelFacts(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _key(model: Model) -> str:
    """A hash of all that a proof depends on; weights changed in place are not read again."""
    # The processor or GPU that computes, as far as rounding depends on it.
    device = [str(model.device), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if model.device.type == "cuda":
        gpu = torch.cuda.get_device_properties(model.device)
        device += [gpu.name, str(gpu.total_memory)]
    holds_for = {
        "weights": _HASHES[model.lm],
        "config": model.lm.config.to_dict(),
        "dtype": str(model.dtype),
        "device": [*device, str(getattr(model.lm, "hf_device_map", ""))],
        "engine": _versions_and_source(),
    }
    text = json.dumps(holds_for, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _versions_and_source() -> str:
    """The versions, and a hash of the files that decide what the engine computes."""
    digest = hashlib.sha256(json.dumps(versions()).encode())
    root = Path(anchorscope.__file__).parent
    for file in sorted([*(root / "engine").rglob("*.py"), *(root / "models").rglob("*.py")]):
        digest.update(file.relative_to(root).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
