"""claims.csv: every claim with its number and its decision in both modes; those of detectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.claims.about_curves import (
    CURVES,
    dataset_claims,
    model_claims,
    reading_claims,
)
from anchorscope.claims.about_evidence import EVIDENCE, FIRST, FLOW, GROUPS
from anchorscope.claims.decision import ClaimInputs, ClaimRow, Measured, decided
from anchorscope.records import MODES
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import ALPHA, holm


def claims_table(
    runs: Sequence[ClaimInputs], *, compared: Sequence[Sequence[ClaimInputs]] | None = None
) -> pd.DataFrame:
    """One row per claim and dataset; two-pathways first.

    `compared` are the groups of runs in which models are compared by size; all in one by default.

    The p-values are Holm's, over all claims of the table but the first one: whether there are two
    pathways is the question the run is for, and is answered at its own level.

    In strict mode a claim about Q and A needs Q and A. Where two pathways are not shown on one of
    its datasets, one mechanism, a kind of question or a continuum can give the same number, and the
    claim is `not shown`, on whichever side of its bound the number is.
    """
    rows = [row for family in (FIRST, CURVES) for run in runs for row in decided(run, family)]
    rows += [row for run in runs for row in dataset_claims(run)]
    for family in (GROUPS, EVIDENCE, FLOW):
        rows += [row for run in runs for row in decided(run, family)]
    rows += [row for run in runs for row in decided(run, reading_claims(run))]
    rows += [row for group in compared or [runs] for row in model_claims(group)]
    finding = {
        (r.model, name): str(r.finding_of(name)["finding"]) for r in runs for name in r.titles
    }
    records: list[dict[str, Any]] = [
        {
            "claim": row.claim.name,
            "statement": row.statement,
            "source": row.claim.source,
            "model": row.model,
            "dataset": row.dataset,
            "finding": finding[row.model, row.dataset] if row.claim.primary else "",
        }
        for row in rows
    ]
    for mode in MODES:
        measured = [getattr(row, mode) for row in rows]
        corrected = _corrected(rows, measured)
        for record, row, one, p in zip(records, rows, measured, corrected, strict=True):
            decision = one.decision(p)
            about_groups = row.claim.about_groups and not row.claim.primary
            if mode == "strict" and about_groups and decision != "not measured":
                curves = itertools.product(row.model.split(", "), row.dataset.split(","))
                if any(finding.get(curve, "two-pathways") != "two-pathways" for curve in curves):
                    decision = "not shown"
            values = {"value": one.value, "decision": decision, "low": one.low, "high": one.high}
            record |= {f"{mode}_{name}": value for name, value in {**values, "p": p}.items()}
    return pd.DataFrame(records, columns=list(table_columns.CLAIMS))


def _corrected(rows: Sequence[ClaimRow], measured: Sequence[Measured]) -> list[float]:
    """The p-value of each claim in one mode, by Holm's correction."""
    p = np.array([one.p for one in measured], dtype=float)
    alone = np.array([not (r.claim.primary or r.claim.shares_number_of) for r in rows], dtype=bool)
    p[alone] = holm(p[alone].tolist())
    by_claim = {(row.claim.name, row.model, row.dataset): p[i] for i, row in enumerate(rows)}
    for place, (row, one) in enumerate(zip(rows, measured, strict=True)):
        if row.claim.shares_number_of:
            p[place] = by_claim[row.claim.shares_number_of, row.model, row.dataset]
        # A claim that is decided elsewhere has one p-value, for holding.
        if one.decided_elsewhere is not None:
            p[place] = one.p_holds
    return p.tolist()


# --- Claims about detectors, decided by their paired comparison with the probe ---


DETECTORS = {
    "mop-beats-probe": ("mop", "Mixture-of-Probes beats the single probe (AUROC)"),
    "pr-beats-probe": ("pr", "Pathway Reweighting beats the single probe (AUROC)"),
}
# As published the folds are at random; strict folds hold entities that were never trained on.
_MODES = {"paper": "random", "strict": "entity"}


def detector_claims(table: pd.DataFrame) -> pd.DataFrame:
    """One row per claim and dataset, named as in claims.csv, from the table of detectors."""
    if "vs_probe" not in table.columns:
        return pd.DataFrame()
    rows = []
    for claim, (detector, statement) in DETECTORS.items():
        for dataset in dict.fromkeys(table["dataset"]):
            own = table[(table["detector"] == detector) & (table["dataset"] == dataset)]
            if len(own):
                row = {"claim": claim, "statement": statement, "source": "text", "dataset": dataset}
                by_split = own.set_index("split").to_dict("index")
                for mode, split in _MODES.items():
                    if split in by_split:
                        row |= _detector_columns(mode, by_split[split])
                rows.append(row)
    return pd.DataFrame(rows)


def _detector_columns(mode: str, row: dict[Any, Any]) -> dict[str, Any]:
    """Value, decision, interval and Holm's p of one mode."""
    value, p = float(row["vs_probe"]), float(row["vs_probe_p"])
    decision = "holds" if value > 0 else "fails"
    return {
        f"{mode}_value": value,
        f"{mode}_decision": decision if math.isfinite(p) and p < ALPHA else "undecided",
        f"{mode}_low": row["vs_probe_low"],
        f"{mode}_high": row["vs_probe_high"],
        f"{mode}_p": p,
    }
