"""Compare one model with the reference: the doctor's checks first, then every intervention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from anchorscope.engine.check import check_model
from anchorscope.engine.interventions import KNOCKOUT, NEUTRAL, QUESTION, Intervention
from anchorscope.models import Model
from kit.engine_samples import PREFIX, SAMPLES, cut_of, engine_states
from kit.plain import Change, plain_scores, plain_states

CLOSE = 1e-3  # of the largest value of a layer: a wrong mask differs a hundred times as much
BETA = 1.5
ANSWERED = [replace(s, exact_answer=tuple(range(s.answer_at, len(s.ids)))) for s in SAMPLES[:3]]


class Outcome(NamedTuple):
    """The result of comparing one architecture with the reference."""

    kind: str
    verdict: str  # right, refused, wrong, traceback, not built
    why: str


def outcome_of(kind: str, model: Model) -> Outcome:
    """Check an architecture: refused with the doctor's reason, or right or wrong."""
    failed = [check for check in check_model(model) if not check.ok]
    if failed:
        return Outcome(kind, "refused", f"{failed[0].name}: {failed[0].seen}")
    far = largest_difference(model)
    return Outcome(kind, "right" if far < CLOSE else "wrong", f"{far:.1e}")


def largest_difference(model: Model) -> float:
    """The largest difference of engine and reference, as a share of the layer's largest value."""
    far = []
    for cut in (KNOCKOUT, QUESTION, NEUTRAL):
        far.append(_apart(engine_states(model, SAMPLES, cut), _plain(model, cut)))
    for width in (1, 2):
        ours = engine_states(model, SAMPLES, Intervention(name="w", layers=f"window:{width}"))
        for k in range(1, model.blocks + 1):
            inside = lambda block, k=k, width=width: k - width < block <= k  # noqa: E731
            plain = _plain(model, KNOCKOUT, inside)
            far.append(_apart(ours[:, k - 1], plain[:, k - 1]))
    return max(*far, *_by_score(model))


def _plain(model: Model, intervention: Intervention, inside=lambda block: True) -> Tensor:
    """Reference states [sample, layer, width] of a knockout in some blocks."""
    return plain_states(model, [s.ids for s in SAMPLES], cut_of(SAMPLES, intervention, inside))


def _by_score(model: Model) -> list[float]:
    """Differences for a cut in single heads, a cut after the softmax, and a boost before it."""
    heads = frozenset({(1, 0), (2, 1), (3, 0), (4, 1)})
    kinds = {
        "heads": ({"heads": tuple(sorted(heads))}, Change(heads=heads)),
        "post": ({"where": "post"}, Change(post=True)),
        "boost": ({"boost": BETA}, Change(added=BETA)),
    }
    far = []
    for name, (options, change) in kinds.items():
        ours = engine_states(model, ANSWERED, Intervention(name=name, **options))
        boosted = math.isfinite(change.added)
        plain = [plain_scores(model, s.ids, _edge(s, boosted), change) for s in ANSWERED]
        far.append(_apart(ours, torch.stack(plain)))
    return far


def _edge(sample, boosted: bool):
    """Whether an edge to E_Q is changed: from later tokens (knockout) or from E_A (boost)."""
    keys = set(sample.exact_question)

    def edge(query: int, key: int) -> bool:
        if boosted:
            return key in keys and query in sample.exact_answer
        return key in keys and query not in keys and query >= len(PREFIX)

    return edge


def _apart(ours: Tensor, plain: Tensor) -> float:
    size = plain.abs().amax(dim=-1, keepdim=True)
    return float(((ours - plain).abs() / size).max())
