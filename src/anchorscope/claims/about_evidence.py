"""Claims about the groups Q and A, and from patching, answer-only, heads and the other evidence.

Each is measured at the chosen layer. Paper mode compares all samples; strict mode takes the strict
groups and compares within each predicted class, averaged by size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.claims.decision import (
    Claim,
    ClaimInputs,
    Decision,
    Measured,
    Region,
    both,
    from_draws,
    from_estimate,
)
from anchorscope.records import Estimate, Mode
from anchorscope.stats.intervals import NOTHING, Draws, difference, difference_of_means, weighted

ENOUGH = 0.8  # the least power at which what was not found is excluded
PREDICTED = {"predicted-right": 0, "predicted-wrong": 1}
PATCH, OTHER_TOKENS = ("patch-matched", "patch-random"), "patch-other"
SIMPLER = ("signed-logit", "margin", "simple")  # predictors that the state must beat
TOP = "top4"
ABOVE, BELOW, BETTER_THAN_CHANCE = Region(low=0.0), Region(high=0.0), Region(low=0.5)
Columns = tuple[str, str, str]  # value, low, high
DELTA_P: Columns = ("delta_p", "delta_p_low", "delta_p_high")
Measure = Callable[[ClaimInputs, str, Mode], Measured | None]
FIRST: list[Claim] = []
GROUPS: list[Claim] = []
EVIDENCE: list[Claim] = []
FLOW: list[Claim] = []


def _claim(
    family: list[Claim],
    name: str,
    statement: str | Callable[[ClaimInputs, str], str],
    **options: Any,
) -> Callable[[Measure], Measure]:
    """Add the claim that a function measures to a family."""

    def add(measure: Measure) -> Measure:
        family.append(Claim(name, statement, measure, **options))
        return measure

    return add


def row_of(table: pd.DataFrame, columns: Columns, **equal: Any) -> Estimate:
    """The first row with these values as an estimate; NaN where there is none."""
    keep = np.ones(len(table), dtype=bool)
    for name, value in equal.items():
        keep &= np.asarray(table[name] == value)
    if not keep.any():
        return NOTHING
    first = int(keep.argmax())
    value, low, high = (float(table[name].iloc[first]) for name in columns)
    return Estimate(value, low, high, int(table["n"].iloc[first]))


def gap_of(table: pd.DataFrame, columns: Columns, **equal: Any) -> Estimate:
    """The estimate in the row of Q less that in the row of A."""
    q, a = (row_of(table, columns, pathway=which, **equal) for which in ("Q", "A"))
    return difference(q, a)


def within(estimate_of: Callable[[str], Estimate]) -> Estimate:
    """The mean of an estimate over the predicted classes that have one, by size."""
    found = [estimate_of(subset) for subset in PREDICTED]
    return weighted([e for e in found if np.isfinite(e[:3]).all()])


def by_mode(mode: Mode, estimate_of: Callable[[str], Estimate]) -> Estimate:
    """The estimate of all samples in paper mode, within the predicted classes in strict mode."""
    return estimate_of("all") if mode == "paper" else within(estimate_of)


@_claim(
    FIRST,
    "two-pathways",
    "samples fall into two pathways (gap of Q and A)",
    source="figure",
    primary=True,
)
def _two_pathways(run: ClaimInputs, dataset: str, mode: Mode) -> Measured:
    """The claim of two pathways: the groups' gap in paper mode, the finding in strict mode."""
    row = run.finding_of(dataset)
    if mode == "strict":
        gap = Estimate(*(float(row[name]) for name in ("gap", "gap_low", "gap_high")), n=0)
        measured, p = from_estimate(gap, BELOW), float(row["dip_p"])
        return replace(measured, p_holds=p, decided_elsewhere=_decision(row))
    curves, layer = run.curves[dataset, mode], int(row["layer"]) - 1
    value = float((curves.q - curves.a)[layer])
    return from_draws(value, (curves.drawn_q - curves.drawn_a)[:, layer], BELOW)


def _decision(row: Mapping[str, Any]) -> Decision:
    """Strict mode's decision on two pathways.

    `fails` needs the alternative excluded: one law for all samples, in a run that would have seen
    a half and a fifth of them lose their belief. A gap near zero excludes nothing.
    """
    if row["finding"] == "two-pathways":
        return "holds"
    seen = float(row["power_half"]) >= ENOUGH and float(row["power_fifth"]) >= ENOUGH
    if row["finding"] in ("uniform", "no-effect") and seen:
        return "fails"
    return "not shown"


def _difference_of_groups(
    run: ClaimInputs, rows: pd.DataFrame, values: np.ndarray, mode: Mode
) -> Measured:
    """The mean of `values` [row] over Q less the mean over A."""
    q, predicted = rows["pathway"].to_numpy() == "Q", rows["prediction"].to_numpy(dtype=float)
    entity = run.entities(rows["id"].tolist())
    draws = Draws(seed=run.seed, resamples=run.resamples)

    def among(subset: str) -> Estimate:
        part = predicted == PREDICTED[subset] if subset in PREDICTED else np.ones(len(q), bool)
        own = q[part].astype(float)
        return difference_of_means(values[part], own, draws, entity=entity[part])

    return from_estimate(by_mode(mode, among), ABOVE)


@_claim(GROUPS, "q-knows", "Q samples are answered right more often than A samples (share)")
def _accuracy(run: ClaimInputs, dataset: str, mode: Mode) -> Measured:
    """Accuracy of Q less A; in strict mode the group must also improve the prediction of z."""
    rows = run.samples(dataset, mode)
    right = 1.0 - np.asarray(rows["z"], dtype=float)
    gap = _difference_of_groups(run, rows, right, mode)
    if mode == "paper":
        return gap
    ends = (float(run.layer_of(dataset)["adds_gain" + end]) for end in ("", "_low", "_high"))
    return both(gap, from_estimate(Estimate(*ends, n=0), ABOVE))


@_claim(GROUPS, "q-popular", "Q samples ask about more popular subjects (powers of ten)")
def _popularity(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    rows = run.samples(dataset, mode)
    ids = rows["id"].tolist()  # one by one, texts of a column take long
    popularity = np.array([run.popularity.get(str(id), np.nan) for id in ids], dtype=float)
    logs = np.log10(np.where(popularity > 0, popularity, np.nan))
    if mode == "paper" and not np.isfinite(logs).any():
        return None
    return _difference_of_groups(run, rows, logs, mode)


@_claim(
    EVIDENCE,
    "patching-flips-q",
    "another subject’s exact tokens flip the verdict on Q more often than on A (share)",
)
def _patching(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    """Flips of Q less A; in strict mode more than under a patch of as many other tokens."""
    rows = run.evidence_at("patching", dataset)
    if rows.empty:
        return None
    patch = next((name for name in PATCH if name in set(rows["intervention"])), PATCH[0])
    named: dict[str, Any] = {"intervention": patch, "mode": mode}
    columns = ("flip_rate", "flip_low", "flip_high")
    flips = from_estimate(by_mode(mode, lambda s: gap_of(rows, columns, subset=s, **named)), ABOVE)
    if mode == "paper":
        return flips
    gaps, ends = run.evidence_at("patching_gap", dataset), ("gap", "gap_low", "gap_high")
    if gaps.empty:
        return None
    beyond = within(lambda s: row_of(gaps, ends, subset=s, less=OTHER_TOKENS, **named))
    return both(flips, from_estimate(beyond, ABOVE))


@_claim(EVIDENCE, "answer-only-moves-q", "leaving the question out lowers Q more than A")
def _answer_only(run: ClaimInputs, dataset: str, mode: Mode) -> Measured:
    """Answer-only effect, Q less A; without answer_only.csv that of all samples in strict.csv."""
    rows = run.evidence_at("answer_only", dataset)
    if rows.empty:
        row, name = run.layer_of(dataset), f"answer_only_{mode}"
        gap = Estimate(*(float(row[name + end]) for end in ("", "_low", "_high")), n=0)
    else:
        gap = by_mode(mode, lambda s: gap_of(rows, DELTA_P, mode=mode, subset=s))
    return from_estimate(gap, BELOW)


@_claim(EVIDENCE, "q-abstains-less", "the model abstains less often on Q than on A (share)")
def _abstention(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    rows = run.evidence_at("boundary", dataset)
    if rows.empty or "abstention" not in set(rows["measure"]):
        return None
    named = {"measure": "abstention", "pathway": "Q-A", "mode": mode}
    gap = by_mode(mode, lambda s: row_of(rows, ("value", "low", "high"), subset=s, **named))
    return from_estimate(gap, BELOW)


@_claim(EVIDENCE, "state-knows-pathway", "the clean state tells Q from A (AUROC)")
def _awareness(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    """AUROC of the state for the pathway; in strict mode it must also beat simpler predictors."""
    rows = run.evidence_at("awareness", dataset)
    if rows.empty:
        return None

    def auroc(predictor: str) -> Estimate:
        named = {"mode": mode, "predictor": predictor}
        return by_mode(mode, lambda s: row_of(rows, ("auroc", "low", "high"), subset=s, **named))

    state = from_estimate(auroc("state"), BETTER_THAN_CHANCE)
    if mode == "paper":
        return state
    gaps = run.evidence_at("awareness_gap", dataset)
    if gaps.empty:
        return None
    best = max(SIMPLER, key=lambda name: np.nan_to_num(auroc(name).value, nan=-1.0))
    named = {"mode": mode, "less": best}
    gain = within(lambda s: row_of(gaps, ("gap", "low", "high"), subset=s, **named))
    return both(state, from_estimate(gain, ABOVE))


@_claim(
    FLOW,
    "saliency-two-humps",
    "the saliency of the exact question tokens has two humps (BIC, one less two)",
    about_groups=False,
)
def _saliency(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    """Two humps of saliency: of all answers in paper mode, of right and of wrong in strict mode.

    Two humps need a dip test that rejects and a BIC for two, in the weakest of the rows. A dip
    test that does not reject is no sign of one hump.
    """
    table = run.evidence_of("saliency", dataset)
    if table.empty:
        return None
    keep = (table["loss"] == "probe") & (table["source"] == "exact")
    summed = np.array([str(layer) in ("", "nan") for layer in table["layer"]])  # over the layers
    used = cast(pd.DataFrame, table.loc[keep & summed]).to_dict("records")
    subsets = ("all",) if mode == "paper" else ("right", "wrong")
    rows = [row for row in used if row["subset"] in subsets and np.isfinite(float(row["dip_p"]))]
    if len(rows) < len(subsets):
        return Measured()
    bic = min(float(row["bic"]) for row in rows)
    p = max(float(row["dip_p"]) for row in rows) if bic > 0 else 1.0
    # Half, because a claim that can be decided either way is tested at twice its p.
    return Measured(value=bic, p_holds=p / 2, p_fails=1.0, otherwise="not shown")


@_claim(
    FLOW,
    "heads-carry",
    "cutting the strongest heads alone (one; four, ranked elsewhere) lowers ΔP",
    about_groups=False,
)
def _heads(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    """ΔP under the strongest heads: of one head in paper mode, of four in strict mode.

    Paper mode ranks and measures heads on the same questions, strict mode on different ones.
    """
    table = run.evidence_of("heads", dataset)
    if table.empty:
        return None
    named = table["set"].fillna("")
    rows = table.loc[named == ("" if mode == "paper" else TOP)]
    if mode == "paper":
        rows = rows.loc[rows["delta_p"] == rows["delta_p"].min()]
    return from_estimate(row_of(cast(pd.DataFrame, rows), ("delta_p", "low", "high")), BELOW)


def _window_blocks(run: ClaimInputs, dataset: str) -> str:
    """The first window of blocks that was read, like "window:5"; "" where none was."""
    table = run.evidence_at("windows", dataset)
    blocks: Sequence[Any] = () if table.empty else table["layers"].tolist()
    return next((str(name) for name in blocks if str(name).startswith("window:")), "")


def _window_statement(run: ClaimInputs, dataset: str) -> str:
    width = _window_blocks(run, dataset).removeprefix("window:")
    return f"cutting only the {width} blocks up to the layer lowers Q more than A"


@_claim(FLOW, "window-moves-q", _window_statement)
def _windows(run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    """Effect of cutting only a window of blocks that ends at the layer, Q less A."""
    blocks = _window_blocks(run, dataset)
    if not blocks:
        return None
    table = run.evidence_at("windows", dataset)
    return from_estimate(gap_of(table, DELTA_P, layers=blocks, mode=mode), BELOW)
