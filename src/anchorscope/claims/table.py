"""claims.csv: every claim with its number and its decision in both modes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorscope.claims.about_curves import (
    CURVES,
    dataset_claims,
    model_claims,
    reading_claims,
)
from anchorscope.claims.about_evidence import EVIDENCE, FIRST, FLOW, GROUPS
from anchorscope.claims.decision import ClaimRow, Measured, decided
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import MODES
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import holm


def claims_table(
    runs: Sequence[ClaimInputs], *, compared: Sequence[Sequence[ClaimInputs]] | None = None
) -> pd.DataFrame:
    """One row per claim and dataset; two-pathways first.

    `compared` are the groups of runs in which models are compared by size; all in one by default.

    The p-values are Holm's, over all claims of the table but the first one: whether there are two
    pathways is the question the run is for, and is answered at its own level.

    In strict mode a claim about Q and A needs Q and A. Where two pathways are not shown on one of
    its datasets, one mechanism, a kind of question or a continuum gives its number as well, and the
    claim is `not shown`, on whichever side of its bound the number is.
    """
    rows = _rows(runs, [runs] if compared is None else compared)
    columns = {mode: _columns([getattr(row, mode) for row in rows], rows) for mode in MODES}
    without = {
        (run.model, name)
        for run in runs
        for name in run.titles
        if run.finding_of(name)["finding"] != "two-pathways"
    }
    for place, row in enumerate(rows):
        measured = columns["strict"]["decision"][place] != "not measured"
        needs_groups = row.claim.about_groups and not row.claim.primary
        curves = set(itertools.product(row.model.split(", "), row.dataset.split(",")))
        if needs_groups and measured and without & curves:
            columns["strict"]["decision"][place] = "not shown"
    findings = {(run.model, name): run.finding_of(name) for run in runs for name in run.titles}
    frame = {
        "claim": [row.claim.name for row in rows],
        "statement": [row.statement for row in rows],
        "source": [row.claim.source for row in rows],
        "model": [row.model for row in rows],
        "dataset": [row.dataset for row in rows],
        "finding": [
            str(findings[row.model, row.dataset]["finding"]) if row.claim.primary else ""
            for row in rows
        ],
    }
    for mode in MODES:
        frame |= {f"{mode}_{name}": values for name, values in columns[mode].items()}
    return pd.DataFrame(frame, columns=list(table_columns.CLAIMS))


def _rows(runs: Sequence[ClaimInputs], compared: Sequence[Sequence[ClaimInputs]]) -> list[ClaimRow]:
    """All claims in the order of claims.csv: family by family, each for all runs."""
    rows = [row for family in (FIRST, CURVES) for run in runs for row in decided(run, family)]
    rows += [row for run in runs for row in dataset_claims(run)]
    for family in (GROUPS, EVIDENCE, FLOW):
        rows += [row for run in runs for row in decided(run, family)]
    rows += [row for run in runs for row in decided(run, reading_claims(run))]
    return rows + [row for group in compared for row in model_claims(group)]


def _columns(readings: Sequence[Measured], rows: Sequence[ClaimRow]) -> dict[str, list]:
    """Value, ends, corrected p and decision of one mode."""
    p = np.array([reading.p for reading in readings], dtype=float)
    alone = np.array([not (r.claim.primary or r.claim.shares_number_of) for r in rows], dtype=bool)
    p[alone] = holm(p[alone].tolist())
    corrected = {(row.claim.name, row.model, row.dataset): p[i] for i, row in enumerate(rows)}
    for place, (row, reading) in enumerate(zip(rows, readings, strict=True)):
        if row.claim.shares_number_of:
            p[place] = corrected[row.claim.shares_number_of, row.model, row.dataset]
        # A claim that is decided elsewhere has one p-value, for holding.
        if reading.decided_elsewhere is not None:
            p[place] = reading.p_holds
    return {
        "value": [reading.value for reading in readings],
        "decision": [r.decision(float(each)) for r, each in zip(readings, p, strict=True)],
        "low": [reading.low for reading in readings],
        "high": [reading.high for reading in readings],
        "p": p.tolist(),
    }
