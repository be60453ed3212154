"""Claims from the other evidence: patching, answer-only, abstentions, self-awareness.

Each is read at the chosen layer. Paper mode compares all samples; strict mode takes the strict
groups and compares within each predicted class, averaged by size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.claims.decision import Claim, Measured, Region, both, from_estimate
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Estimate
from anchorscope.stats.intervals import difference, weighted

PREDICTED = ("predicted-right", "predicted-wrong")
PATCH, OTHER_TOKENS = ("patch-matched", "patch-random"), "patch-other"
BASELINES = ("signed-logit", "margin", "simple")
NOTHING = Estimate(np.nan, np.nan, np.nan, 0)


def evidence_claims(run: ClaimInputs) -> Iterator[Claim]:
    """The claims that the run's evidence can speak to; answer-only always, it costs nothing."""
    claims: tuple[Callable[[ClaimInputs, str], Claim | None], ...] = (
        _patching, _answer_only, _abstention, _awareness,
    )  # fmt: skip
    for claim in claims:
        for dataset in run.titles:
            found = claim(run, dataset)
            if found is not None:
                yield found


def row_of(table: pd.DataFrame, columns: tuple[str, str, str], **equal: Any) -> Estimate:
    """The row with these values as an estimate; NaN where there is none."""
    keep = np.ones(len(table), dtype=bool)
    for name, value in equal.items():
        keep &= np.asarray(table[name] == value)
    if not keep.any():
        return NOTHING
    first = int(keep.argmax())
    value, low, high = (float(table[name].iloc[first]) for name in columns)
    return Estimate(value, low, high, int(table["n"].iloc[first]))


def within(of: Callable[[str], Estimate]) -> Estimate:
    """The mean of an estimate over the predicted classes that have one, by size."""
    found = [of(subset) for subset in PREDICTED]
    return weighted([e for e in found if np.isfinite(e[:3]).all()])


def _gap(table: pd.DataFrame, columns: tuple[str, str, str], **equal: Any) -> Estimate:
    q, a = (row_of(table, columns, pathway=which, **equal) for which in ("Q", "A"))
    return difference(q, a)


def _patching(run: ClaimInputs, dataset: str) -> Claim | None:
    """In strict mode the gap must also exceed that of a patch of as many other tokens."""
    rows = run.evidence_at("patching", dataset)
    if rows.empty:
        return None
    patch = next((name for name in PATCH if name in set(rows["intervention"])), PATCH[0])
    columns = ("flip_rate", "flip_low", "flip_high")

    def inside(name: str) -> Estimate:
        return within(
            lambda subset: _gap(rows, columns, intervention=name, mode="strict", subset=subset)
        )

    strict = from_estimate(inside(patch), Region(low=0.0))
    gaps = run.evidence_at("patching_gap", dataset)
    if len(gaps):
        ends = ("gap", "gap_low", "gap_high")
        of = {"intervention": patch, "less": OTHER_TOKENS, "mode": "strict"}
        beyond = within(lambda subset: row_of(gaps, ends, subset=subset, **of))
        strict = both(strict, from_estimate(beyond, Region(low=0.0)))
    elif OTHER_TOKENS in set(rows["intervention"]):  # a run of an earlier version: not as pairs
        beyond = difference(inside(patch), inside(OTHER_TOKENS))
        strict = both(strict, from_estimate(beyond, Region(low=0.0)))
    paper = _gap(rows, columns, intervention=patch, mode="paper", subset="all")
    said = "another subject’s exact tokens flip the verdict on Q more often than on A (share)"
    return _claim(run, dataset, "patching-flips-q", said,
                  from_estimate(paper, Region(low=0.0)), strict)  # fmt: skip


def _answer_only(run: ClaimInputs, dataset: str) -> Claim:
    """From answer_only.csv; without it from strict.csv, which compares all samples."""
    rows = run.evidence_at("answer_only", dataset)
    if rows.empty:
        at = run.layer_of(dataset)
        names = {mode: f"answer_only_{mode}" for mode in ("paper", "strict")}
        gaps = {m: Estimate(*(float(at[n + end]) for end in ("", "_low", "_high")), n=0)
                 for m, n in names.items()}  # fmt: skip
        paper, strict = gaps["paper"], gaps["strict"]
    else:
        columns = ("delta_p", "delta_p_low", "delta_p_high")
        paper = _gap(rows, columns, mode="paper", subset="all")
        strict = within(lambda subset: _gap(rows, columns, mode="strict", subset=subset))
    said = "leaving the question out lowers Q more than A"
    readings = (from_estimate(gaps, Region(high=0.0)) for gaps in (paper, strict))
    return _claim(run, dataset, "answer-only-moves-q", said, *readings)


def _abstention(run: ClaimInputs, dataset: str) -> Claim | None:
    rows = run.evidence_at("boundary", dataset)
    if rows.empty or "abstention" not in set(rows["measure"]):
        return None
    columns = ("value", "low", "high")

    def gap(mode: str, subset: str) -> Estimate:
        return row_of(rows, columns, mode=mode, subset=subset, measure="abstention", pathway="Q-A")

    strict = within(lambda subset: gap("strict", subset))
    said = "the model abstains less often on Q than on A (share)"
    readings = (from_estimate(e, Region(high=0.0)) for e in (gap("paper", "all"), strict))
    return _claim(run, dataset, "q-abstains-less", said, *readings)


def _awareness(run: ClaimInputs, dataset: str) -> Claim | None:
    """In strict mode the state must also beat logit, margin, popularity and length."""
    rows = run.evidence_at("awareness", dataset)
    if rows.empty:
        return None
    columns = ("auroc", "low", "high")

    def inside(predictor: str) -> Estimate:
        return within(
            lambda subset: row_of(rows, columns, mode="strict", subset=subset, predictor=predictor)
        )

    paper = row_of(rows, columns, mode="paper", subset="all", predictor="state")
    state, simpler = inside("state"), [inside(name) for name in BASELINES]
    best = max(simpler, key=lambda e: np.nan_to_num(e.value, nan=-1.0))
    gain = difference(state, best)
    gaps = run.evidence_at("awareness_gap", dataset)
    if len(gaps):  # on the same samples: compared as pairs
        ends, less = ("gap", "low", "high"), BASELINES[simpler.index(best)]
        gain = within(lambda subset: row_of(gaps, ends, mode="strict", subset=subset, less=less))
    strict = both(from_estimate(state, Region(low=0.5)), from_estimate(gain, Region(low=0.0)))
    said = "the clean state tells Q from A (AUROC)"
    return _claim(run, dataset, "state-knows-pathway", said,
                  from_estimate(paper, Region(low=0.5)), strict)  # fmt: skip


def _claim(
    run: ClaimInputs, dataset: str, name: str, said: str, paper: Measured, strict: Measured
) -> Claim:
    return Claim(
        claim=name,
        statement=said,
        source="paper",
        model=run.model,
        dataset=dataset,
        paper=paper,
        strict=strict,
    )
