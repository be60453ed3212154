"""Check that a model is understood, in turn, and keep the proof on disk.

What a run does is what is tried. A proof holds for these weights and this config, on this device
with these versions, and for this source of the engine. Where one of them differs, the model is
proved again. `doctor` always proves.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

import anchorscope
from anchorscope.engine.batches import ModelFacts, facts_of, set_facts
from anchorscope.engine.check import trial as tries
from anchorscope.engine.check.stock import Stock, rounding, stock_pass, stock_states, stock_under
from anchorscope.engine.decode import read_prefix
from anchorscope.engine.interventions import Intervention, window_of
from anchorscope.engine.lease import Lease, can_fuse
from anchorscope.engine.packs import distance
from anchorscope.engine.passes import ANSWER_ONLY, KNOCKOUT
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import first_tokens
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.identity import versions, weights_hash
from anchorscope.run_folder.remote import cache_folder

# What an intervention moves must be this many times what rounding may: else nothing is proved.
_POWER = 3.0
_LOGITS = 10.0  # log-probabilities are of another size than states: they may be so much further off
_NAMES = {
    "knockout": "the knockout blocks what it says and nothing else",
    "single": "a knockout in one block",
    "window": "a knockout in a window of blocks",
    "heads": "a knockout in some heads",
    "post": "a knockout after the softmax",
    "boost": "edges reweighted before the softmax",
}


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and what was seen."""

    name: str
    ok: bool
    seen: str
    near: bool = False  # at least nearer to what stock attention gives than to the clean states


def check_model(model: Model) -> Iterator[Check]:
    """Check that the knockout is exact on a model, which is left as it was; raises no error.

    A model that passes them all is not checked again by a run of the same process.

    Args:
        model: What `load_model` gave.

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
    passed = True
    for check in checks:
        passed = passed and check.ok
        yield check
    if passed:
        _PROVED[_key(model)] = replace(facts_of(model.lm), bounds=None)


def _report(model: Model) -> Iterator[Check]:
    """Each check; an error is a failed one."""
    try:
        yield from _in_any_precision(model)
    except Exception as error:
        message = next(iter(str(error).strip().splitlines()), "no message").rstrip(".")
        seen = message if isinstance(error, UserError) else f"{type(error).__name__}: {message}"
        yield Check("its attention can be changed", False, seen)


def _in_any_precision(model: Model) -> Iterator[Check]:
    """The checks; what half precision rounds too much to tell is tried again in float32.

    In half precision the states must still be nearer to stock attention's than to the clean ones.
    """
    doubtful = []
    for check in _checks(model):
        if check.ok or not check.near or not can_be_float32(model):
            yield check
        else:
            doubtful.append(check)
    if not doubtful:
        return
    with in_float32(model):
        exact = {check.name: check for check in _state_checks(model, {c.name for c in doubtful})}
    for check in doubtful:
        again = exact.get(check.name) or check
        both = f"{check.seen}; in float32 on the same weights: {again.seen}"
        yield Check(check.name, again.ok, both)


def _checks(model: Model) -> Iterator[Check]:
    yield Check("a prompt begins as the model's files say", *first_tokens(model))
    before = _logits(model)
    limit = yield from _state_checks(model)
    yield Check(*tries.check_far(model, limit))
    yield Check(*tries.check_long(model, limit))
    yield Check(*tries.check_pack(model, limit))
    same = torch.equal(before, _logits(model))
    yield Check("the model is left as it was", same, "logits bit for bit" if same else "it changed")


@torch.no_grad()
def _logits(model: Model) -> Tensor:
    """The logits [vocabulary] that the model gives as it is outside of a lease."""
    tokens = torch.tensor([tries.prompts_for(model)[0]], device=model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model.lm(tokens, use_cache=False).logits[0, -1]


def _state_checks(
    model: Model, names: Collection[str] = tuple(_NAMES.values())
) -> Generator[Check, None, float]:
    """The checks of states against stock attention, and what rounding allows.

    Each intervention costs a pass or more of its own: only those `names` are tried.
    """
    # What the engine gives.
    prompts, weights = tries.prompts_for(model), []
    with Lease(model) as lease:
        prefix = read_prefix(lease, prompts[0][: tries.PREFIX])
        trial = tries.answer_prompts(lease, prefix, prompts)
        trunk, samples = trial.written.trunk, trial.samples
        # Not before a first pass: a model without heads is refused by it, with the reason.
        kinds = [k for k in tries.interventions(model) if _NAMES[k.name] in names]
        needed = dict.fromkeys((KNOCKOUT, *kinds, ANSWER_ONLY))
        states = tries.engine_states(lease, trunk, samples, tuple(needed))
        empty, nowhere = tries.empty_pair(lease, trunk, samples[0])
        lease.observer = weights.append
        slow = tries.engine_states(lease, trunk, samples, (KNOCKOUT,))["knockout"]
    yield Check(
        "its attention can be read", True, f"{model.blocks} blocks, width {model.parts.width}"
    )
    # The same by stock attention.
    rows = [sample.ids for sample in samples]
    stock = stock_pass(model, rows)
    limit = rounding(model, rows, stock)
    yield _decoding(model, trial, states["knockout"], stock, limit)
    same = torch.equal(empty, nowhere)
    yield Check(
        "an empty knockout changes nothing", same, "bit for bit" if same else "it changes states"
    )
    clean = torch.stack([stock.states[row, len(ids) - 1] for row, ids in enumerate(rows)])
    for kind in kinds:
        theirs = stock_under(model, samples, kind)
        yield _against_stock(model, kind, states[kind.name], theirs, clean, limit)
    answers = [(s.ids[0], *s.ids[s.answer_at :]) for s in samples]
    alone = stock_states(model, answers, lambda block: None)
    moved = max(distance(a, b) for a, b in zip(clean, alone, strict=True))
    yield _near("the answer alone", states[ANSWER_ONLY.name], alone, limit, moved=moved)
    cut = _cut_weight(trial, weights)
    yield Check("blocked edges carry no weight", cut == 0, f"largest blocked weight {cut:.1e}")
    yield _near("fused and written-out attention agree", slow, states["knockout"], limit)
    return limit


def _decoding(
    model: Model, trial: tries.Trial, knocked: Tensor, stock: Stock, limit: float
) -> Check:
    """Greedy answers with their states and log-probabilities, against whole rows at once."""
    far, unsure, moved = 0.0, 0.0, 0.0
    for row, (sample, answer) in enumerate(zip(trial.samples, trial.written.answers, strict=True)):
        span = slice(sample.answer_at, len(sample.ids))
        far = max(far, distance(trial.written.states[row], stock.states[row, span]))
        moved = max(moved, distance(knocked[row], stock.states[row, len(sample.ids) - 1]))
        before = slice(sample.answer_at - 1, len(sample.ids) - 1)
        theirs = torch.log_softmax(stock.logits[row, before].float(), dim=-1)
        chosen = torch.tensor(answer.token_ids, device=theirs.device)
        ours = torch.tensor(answer.log_probs, device=theirs.device)
        off = (ours - theirs.gather(1, chosen[:, None])[:, 0]).abs().max()
        short = (theirs.amax(dim=1) - ours).abs().max()
        unsure = max(unsure, float(torch.maximum(off, short)))
    for k in range(1, model.blocks):
        far = max(far, distance(stock.hidden[k][0], stock.states[0, :, k - 1]))
    return Check(
        "answers and clean states are those of stock attention",
        far < limit and unsure < _LOGITS * limit,
        f"largest difference {far:.1e}, rounding allows {limit:.1e}; "
        f"of log-probabilities {unsure:.1e}",
        near=far < moved,
    )  # fmt: skip


def _against_stock(
    model: Model,
    kind: Intervention,
    ours: Tensor,
    theirs: dict[int, Tensor],
    clean: Tensor,
    limit: float,
) -> Check:
    """One intervention against stock attention with that change, at the layers that tell."""
    far = moved = 0.0
    for depth, states in theirs.items():
        layers = slice(0 if window_of(kind.layers) is None else depth - 1, depth)
        far = max(far, distance(ours[:, layers], states[:, layers]))
        moved = max(moved, distance(clean[:, layers], states[:, layers]))
    text = f"largest difference from stock attention {far:.1e}; it moves states by {moved:.1e}"
    powerless = moved <= _POWER * limit
    if powerless:
        text += f", too little to tell from rounding ({limit:.1e}): the check has no power"
    # One block of many moves less than half precision rounds, whatever the model.
    excused = window_of(kind.layers) is not None and model.dtype != torch.float32
    ok = far < limit and (excused or not powerless)
    # Where half precision rounds further than the cut moves, nearness says no more than rounding.
    return Check(_NAMES[kind.name], ok, text, near=far < max(moved, _POWER * limit))


def _near(name: str, ours: Tensor, theirs: Tensor, limit: float, *, moved: float = 0.0) -> Check:
    far = max(distance(a, b) for a, b in zip(ours, theirs, strict=True))
    return Check(name, far < limit, f"largest difference {far:.1e}", near=far < moved)


def _cut_weight(trial: tries.Trial, weights: list[Tensor]) -> float:
    """The largest weight on a cut edge; keys come as prefix, trunk, then the row's own.

    `weights` are those of each block, [sample, head, query, key].
    """
    columns, largest = trial.written.trunk.at, 0.0
    for row, sample in enumerate(trial.samples):
        keys = torch.tensor(sample.exact_question, device=columns.device)
        at = torch.isin(columns[row], keys).nonzero()[:, 0] + tries.PREFIX
        largest = max(largest, *(float(w[row][..., at.to(w.device)].abs().max()) for w in weights))
    return largest


# --- Proved once: for this process, and on disk for the next ---


_PROVED: dict[tuple[str, ...], ModelFacts] = {}
_HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # of weights, as first seen


def require_understood(model: Model, *, weights: str | None = None) -> None:
    """Raise a UserError that names the failed checks; a proof is kept and made only once.

    `weights` is their hash, where it was computed already.
    """
    if weights is not None:
        _HASHES[model.lm] = weights
    key = _key(model)
    proved = _PROVED.get(key) or load_proof(model, _HASHES[model.lm])
    if proved is not None:
        _PROVED[key] = proved
        # The same weights may have been loaded again, or have been tried with longer packs since.
        since = facts_of(model.lm)
        if (since.proved or 0) > (proved.proved or 0):
            proved = replace(proved, proved=since.proved, largest=since.largest)
        set_facts(model.lm, proved)
        return
    failed = [check for check in check_model(model) if not check.ok]
    if failed:
        seen = "; ".join(f"{check.name}: no ({check.seen})" for check in failed)
        raise UserError(
            f"{model.name} is not understood, so its numbers would mean nothing: {seen}. "
            f"`anchorscope doctor --model {model.source}` shows every check."
        )
    save_proof(model, _HASHES[model.lm], _PROVED[key])


def _key(model: Model) -> tuple[str, ...]:
    """What a proof holds for.

    It is about a model's arithmetic: weights that are changed in place are not hashed again.
    """
    if model.lm not in _HASHES:
        _HASHES[model.lm] = weights_hash(model.lm)
    config = model.lm.config.to_json_string()
    return (_HASHES[model.lm], str(model.dtype), str(model.device), config)


# --- The same weights in float32, where half precision rounds too much to tell ---


_HALF = (torch.bfloat16, torch.float16)


def can_be_float32(model: Model) -> bool:
    """Whether all weights are plain half-precision ones on one device."""
    weights = list(model.lm.parameters())
    plain = getattr(model.lm, "hf_quantizer", None) is None
    whole = len({weight.device for weight in weights}) == 1 and weights[0].device.type != "meta"
    return plain and whole and all(weight.dtype in _HALF for weight in weights)


@contextmanager
def in_float32(model: Model) -> Iterator[None]:
    """The model with its half-precision weights as float32; afterwards as it was, bit for bit.

    Every bfloat16 and float16 is a float32, so the way there and back loses nothing.
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


# --- The files of proofs ---


def load_proof(model: Model, weights: str) -> ModelFacts | None:
    """What an earlier process found out about the model; None where none has proved it."""
    try:
        return ModelFacts(**json.loads(_file(model, weights).read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def save_proof(model: Model, weights: str, facts: ModelFacts) -> None:
    """Keep what was found out about a model that passed every check."""
    with suppress(OSError):  # a full or read-only cache costs the next run its proof, no more
        write_atomic(_file(model, weights), json.dumps(asdict(facts)) + "\n")


def _file(model: Model, weights: str) -> Path:
    holds_for = {
        "weights": weights,
        "config": model.lm.config.to_dict(),
        "dtype": str(model.dtype),
        "device": _device(model),
        "versions": versions(),
        "source": _source_hash(),
    }
    text = json.dumps(holds_for, sort_keys=True, default=str)
    return cache_folder() / "proofs" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _device(model: Model) -> list[str]:
    """The processor or GPU that computes, as far as rounding depends on it."""
    name = [str(model.device), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if model.device.type == "cuda":
        facts = torch.cuda.get_device_properties(model.device)
        name += [facts.name, str(facts.total_memory)]
    devices = getattr(model.lm, "hf_device_map", None)
    return [*name, str(devices or "")]


@cache
def _source_hash() -> str:
    """A hash of the files that decide what the engine computes."""
    digest = hashlib.sha256()
    root = Path(anchorscope.__file__).parent
    for folder in ("engine", "models"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
