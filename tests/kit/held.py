"""One model held against the plain way: the doctor's word, then knockouts by masks in hooks."""

from __future__ import annotations

from typing import NamedTuple

from anchorscope.engine.check import check_model
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import KNOCKOUT, QUESTION, RANDOM
from anchorscope.models import Model
from kit.engine_samples import SAMPLES, cut_of, engine_states
from kit.plain import plain_states

CLOSE = 1e-3  # of the largest value of a layer: a wrong mask is off by a hundred times that


class Outcome(NamedTuple):
    """What came of one architecture."""

    kind: str
    verdict: str  # right, refused, wrong, traceback, not built
    why: str


def outcome_of(kind: str, model: Model) -> Outcome:
    """Refused with the doctor's reason, or right or wrong by the plain way."""
    failed = [check for check in check_model(model) if not check.ok]
    if failed:
        return Outcome(kind, "refused", f"{failed[0].name}: {failed[0].seen}")
    far = largest_difference(model)
    if far is None:
        return Outcome(kind, "right", "by the doctor; its masks cannot be reached in hooks")
    return Outcome(kind, "right" if far < CLOSE else "wrong", f"{far:.1e}")


def largest_difference(model: Model) -> float | None:
    """Between the engine and the plain way, as a share of the layer's largest value.

    None where no hook sees the masks.
    """
    ids = [sample.ids for sample in SAMPLES]
    try:
        plain_states(model, ids[:1], side="right")
    except (KeyError, TypeError, AttributeError):
        return None
    far = 0.0
    for cut in (KNOCKOUT, QUESTION, RANDOM):
        plain = plain_states(model, ids, cut_of(SAMPLES, cut), side="right")
        far = max(far, _apart(engine_states(model, SAMPLES, cut), plain))
    for width in (1, 2):
        ours = engine_states(model, SAMPLES, Intervention(name="w", layers=f"window:{width}"))
        for k in range(1, model.blocks + 1):
            inside = lambda block, k=k, width=width: k - width < block <= k  # noqa: E731
            plain = plain_states(model, ids, cut_of(SAMPLES, KNOCKOUT, inside), side="right")
            far = max(far, _apart(ours[:, k - 1], plain[:, k - 1]))
    return far


def _apart(ours, plain) -> float:
    size = plain.abs().amax(dim=-1, keepdim=True)
    return float(((ours - plain).abs() / size).max())
