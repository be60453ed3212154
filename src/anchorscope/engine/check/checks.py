"""The checks in turn, and the error of a model that fails one. What a run does is what is tried."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from anchorscope.engine.check import trial as tries
from anchorscope.engine.check.edits import Theirs, stock_by_kind
from anchorscope.engine.check.limits import distance, rounding
from anchorscope.engine.check.measure import measure
from anchorscope.engine.check.packs import check_far, check_long, check_pack
from anchorscope.engine.check.precision import can_be_float32, in_float32
from anchorscope.engine.check.stock import Stock, stock_pass, stock_states
from anchorscope.engine.check.stored_proof import load_proof, save_proof
from anchorscope.engine.check.trial import Trial
from anchorscope.engine.fused import can_fuse
from anchorscope.engine.interventions import Intervention, window_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits.bounds import Noted, note, note_again, noted_of
from anchorscope.engine.passes import ANSWER_ONLY, KNOCKOUT
from anchorscope.engine.trunk import read_prefix
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import first_tokens
from anchorscope.run_folder.identity import weights_hash

# What an intervention moves must be this many times what rounding may: else nothing is proved.
_POWER = 3.0
# Tokens of the pack that is tried before a run: as many as usual prompts have. Packs of the run
# that are longer are tried as they are.
_SHORT = 128
_LOGITS = 10.0  # log-probabilities are of another size than states: they may be so much further off
_SAID = {
    "knockout": "the knockout blocks what it says and nothing else",
    "single": "a knockout in one block",
    "window": "a knockout in a window of blocks",
    "heads": "a knockout in some heads",
    "post": "a knockout after the softmax",
    "boost": "edges reweighted before the softmax",
}


class Check(NamedTuple):
    """One thing that was checked, whether it is so, and what was seen."""

    name: str
    ok: bool
    seen: str
    near: bool = False  # at least nearer to what stock attention gives than to the clean states


@dataclass(frozen=True)
class _Seen:
    """What the engine gave for the three questions."""

    trial: Trial
    states: dict[str, Tensor]  # [sample, layer, width] by intervention
    empty: tuple[Tensor, Tensor]
    slow: Tensor  # [sample, layer, width]: the knockout with the weights written out
    weights: list[Tensor]  # by block, [sample, head, query, key]


def check_model(model: Model, *, pack: int | None = None) -> Iterator[Check]:
    """Each check as it is done; the model is left as it was. No error comes out of it.

    A model that passes them all is not checked again by a run of the same process. A full pack is
    tried with at most `pack` tokens; longer ones are then tried when they come.

    Examples:
        >>> import anchorscope as anc
        >>> checks = list(anc.check_model(model))
        >>> all(check.ok for check in checks), checks[3].name, checks[3].seen
        (True, 'an empty knockout changes nothing', 'bit for bit')

    """
    passed = True
    for check in _with_or_without_kernels(model, pack):
        passed = passed and check.ok
        yield check
    if passed:
        _PROVED[_key(model)] = noted_of(model.lm)


def _with_or_without_kernels(model: Model, pack: int | None) -> Iterator[Check]:
    """Each check; where one fails with the fused kernels of a GPU, all are done again without.

    A run then goes without them too.
    """
    note(model.lm, replace(noted_of(model.lm), fused=True))
    if not can_fuse(model):
        yield from _told(model, pack)
        return
    checks = list(_told(model, pack))
    if all(check.ok for check in checks):
        yield from checks
        return
    note(model.lm, replace(noted_of(model.lm), fused=False))
    yield from _told(model, pack)


def _told(model: Model, pack: int | None) -> Iterator[Check]:
    """Each check; an error is a failed one."""
    try:
        yield from _in_any_precision(model, pack)
    except UserError as error:
        yield Check("its attention can be changed", False, str(error).rstrip("."))
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), "no message")
        yield Check("its attention can be changed", False, f"{type(error).__name__}: {said}")


def _in_any_precision(model: Model, pack: int | None) -> Iterator[Check]:
    """The checks; what half precision rounds too much to tell is tried again in float32.

    In half precision the states must still be nearer to stock attention's than to the clean ones.
    """
    doubtful = []
    for check in _checks(model, pack):
        if check.ok or not check.near or not can_be_float32(model):
            yield check
        else:
            doubtful.append(check)
    if not doubtful:
        return
    with in_float32(model):
        exact = {check.name: check for check in _of_states(model, {c.name for c in doubtful})}
    for check in doubtful:
        again = exact.get(check.name) or check
        said = f"{check.seen}; in float32 on the same weights: {again.seen}"
        yield Check(check.name, again.ok, said)


def _checks(model: Model, pack: int | None) -> Iterator[Check]:
    yield Check("a prompt begins as the model's files say", *first_tokens(model))
    before = _logits(model)
    measure(model)
    limit = yield from _of_states(model)
    yield Check(*check_far(model, limit))
    yield Check(*check_long(model, limit))
    yield Check(*check_pack(model, limit, most=pack))
    same = torch.equal(before, _logits(model))
    yield Check("the model is left as it was", same, "logits bit for bit" if same else "it changed")


def _of_states(
    model: Model, names: Collection[str] = tuple(_SAID.values())
) -> Generator[Check, None, float]:
    """The checks of states against stock attention, and what rounding allows.

    Each intervention costs a pass or more of its own: only those `names` are tried.
    """
    seen = _ours(model, names)
    blocks = f"{model.blocks} blocks, width {model.parts.width}"
    yield Check("its attention can be read", True, blocks)
    samples = seen.trial.samples
    stock = stock_pass(model, [s.ids for s in samples])
    limit = rounding(model, [s.ids for s in samples], stock)
    yield _decoding(model, seen, stock, limit)
    same = torch.equal(*seen.empty)
    yield Check(
        "an empty knockout changes nothing", same, "bit for bit" if same else "it changes states"
    )
    clean = torch.stack([stock.states[row, len(s.ids) - 1] for row, s in enumerate(samples)])
    kinds = [kind for kind in tries.interventions(model) if _SAID[kind.name] in names]
    by_kind = stock_by_kind(model, samples, kinds)
    for kind in kinds:
        yield _against_stock(model, seen, kind, by_kind[kind.name], clean, limit)
    answers = [(s.ids[0], *s.ids[s.answer_at :]) for s in samples]
    alone = stock_states(model, answers, lambda block: None, depth=model.blocks)
    moved = max(distance(a, b) for a, b in zip(clean, alone, strict=True))
    yield _near("the answer alone", seen.states[ANSWER_ONLY.name], alone, limit, moved=moved)
    cut = _cut_weight(seen)
    yield Check("blocked edges carry no weight", cut == 0, f"largest blocked weight {cut:.1e}")
    yield _near("fused and written-out attention agree", seen.slow, seen.states["knockout"], limit)
    return limit


_PROVED: dict[tuple[str, ...], Noted] = {}
_HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # of weights, as first seen


def require_understood(model: Model, *, weights: str | None = None) -> None:
    """Raise a UserError that names the failed checks; a model is proved once, and that is kept.

    `weights` is their hash, where it was computed already.
    """
    if weights is not None:
        _HASHES[model.lm] = weights
    key = _key(model)
    proved = _PROVED.get(key) or load_proof(model, _HASHES[model.lm])
    if proved is not None:
        _PROVED[key] = proved
        note_again(model.lm, proved)  # the same weights may have been loaded again
        return
    failed = [check for check in check_model(model, pack=_SHORT) if not check.ok]
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


@torch.no_grad()
def _logits(model: Model) -> Tensor:
    """The logits [vocabulary] that the model gives as its owner left it."""
    tokens = torch.tensor([tries.prompts_for(model)[0]], device=model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model.lm(tokens, use_cache=False).logits[0, -1]


def _ours(model: Model, names: Collection[str]) -> _Seen:
    """What the engine gives, for the interventions of these `names` and for the knockout."""
    prompts = tries.prompts_for(model)
    with Lease(model) as lease:
        prefix = read_prefix(lease, prompts[0][: tries.PREFIX])
        trial = tries.answered(lease, prefix, prompts)
        trunk, samples = trial.written.trunk, trial.samples
        # Not before a first pass: a model without heads is refused by it, with the reason.
        kinds = [k for k in tries.interventions(model) if k is KNOCKOUT or _SAID[k.name] in names]
        states = tries.ours(lease, trunk, samples, (*kinds, ANSWER_ONLY))
        empty = tries.empty_pair(lease, trunk, samples[0])
        weights: list[Tensor] = []
        lease.look = weights.append
        slow = tries.ours(lease, trunk, samples, (KNOCKOUT,))["knockout"]
    return _Seen(trial, states, empty, slow, weights)


def _decoding(model: Model, seen: _Seen, stock: Stock, limit: float) -> Check:
    """Greedy answers with their states and log-probabilities, against whole rows at once."""
    far, unsure, moved, trial = 0.0, 0.0, 0.0, seen.trial
    for row, (sample, line) in enumerate(zip(trial.samples, trial.written.lines, strict=True)):
        span = slice(sample.answer_at, len(sample.ids))
        far = max(far, distance(trial.written.states[row], stock.states[row, span]))
        last = stock.states[row, len(sample.ids) - 1]
        moved = max(moved, distance(seen.states[KNOCKOUT.name][row], last))
        before = slice(sample.answer_at - 1, len(sample.ids) - 1)
        theirs = torch.log_softmax(stock.logits[row, before].float(), dim=-1)
        chosen = torch.tensor(line.token_ids, device=theirs.device)
        said = torch.tensor(line.log_probs, device=theirs.device)
        off = (said - theirs.gather(1, chosen[:, None])[:, 0]).abs().max()
        short = (theirs.amax(dim=1) - said).abs().max()
        unsure = max(unsure, float(torch.maximum(off, short)))
    middle = [
        distance(stock.hidden[k][0], stock.states[0, :, k - 1]) for k in range(1, model.blocks)
    ]
    far = max(far, *middle, 0.0)
    return Check(
        "answers and clean states are those of stock attention",
        far < limit and unsure < _LOGITS * limit,
        f"largest difference {far:.1e}, rounding allows {limit:.1e}; "
        f"of log-probabilities {unsure:.1e}",
        near=far < moved,
    )  # fmt: skip


def _against_stock(
    model: Model,
    seen: _Seen,
    kind: Intervention,
    theirs: list[Theirs],
    clean: Tensor,
    limit: float,
) -> Check:
    """One intervention against stock attention with that change, at the layers that tell."""
    ours = seen.states[kind.name]
    far = max(distance(ours[:, layers], states) for layers, states in theirs)
    moved = max(distance(clean[:, layers], states) for layers, states in theirs)
    said = f"largest difference from stock attention {far:.1e}; it moves states by {moved:.1e}"
    powerless = moved <= _POWER * limit
    if powerless:
        said += f", too little to tell from rounding ({limit:.1e}): the check has no power"
    # One block of many moves less than half precision rounds, whatever the model.
    excused = window_of(kind.layers) is not None and model.dtype != torch.float32
    ok = far < limit and (excused or not powerless)
    # Where half precision rounds further than the cut moves, nearness says no more than rounding.
    return Check(_SAID[kind.name], ok, said, near=far < max(moved, _POWER * limit))


def _near(name: str, ours: Tensor, theirs: Tensor, limit: float, *, moved: float = 0.0) -> Check:
    far = max(distance(a, b) for a, b in zip(ours, theirs, strict=True))
    return Check(name, far < limit, f"largest difference {far:.1e}", near=far < moved)


def _cut_weight(seen: _Seen) -> float:
    """The largest weight on a cut edge; keys stand as prefix, trunk, then the row's own."""
    columns = seen.trial.written.trunk.at
    largest = 0.0
    for row, sample in enumerate(seen.trial.samples):
        keys = torch.tensor(sample.exact_question, device=columns.device)
        at = torch.isin(columns[row], keys).nonzero()[:, 0] + tries.PREFIX
        largest = max(largest, *(float(w[row][..., at].abs().max()) for w in seen.weights))
    return largest
