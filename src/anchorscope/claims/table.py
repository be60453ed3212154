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
from anchorscope.claims.decision import Claim, Measured, decided
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
    claims = _claims(runs, [runs] if compared is None else compared)
    columns = {mode: _columns([getattr(claim, mode) for claim in claims], claims) for mode in MODES}
    without = _without_pathways(runs)
    for place, claim in enumerate(claims):
        measured = columns["strict"]["decision"][place] != "not measured"
        needs_groups = claim.about_groups and not claim.primary
        if needs_groups and measured and without & _places(claim):
            columns["strict"]["decision"][place] = "not shown"
    frame = {
        "claim": [claim.claim for claim in claims],
        "statement": [claim.statement for claim in claims],
        "source": [claim.source for claim in claims],
        "model": [claim.model for claim in claims],
        "dataset": [claim.dataset for claim in claims],
        "finding": [claim.finding for claim in claims],
    }
    for mode in MODES:
        frame |= {f"{mode}_{name}": values for name, values in columns[mode].items()}
    return pd.DataFrame(frame, columns=list(table_columns.CLAIMS))


def _without_pathways(runs: Sequence[ClaimInputs]) -> set[tuple[str, str]]:
    """Model and dataset wherever strict mode's finding is not two pathways."""
    return {
        (run.model, name)
        for run in runs
        for name in run.titles
        if run.finding_of(name)["finding"] != "two-pathways"
    }


def _places(claim: Claim) -> set[tuple[str, str]]:
    """Model and dataset of every curve that a claim is about."""
    return set(itertools.product(claim.model.split(", "), claim.dataset.split(",")))


def _claims(runs: Sequence[ClaimInputs], compared: Sequence[Sequence[ClaimInputs]]) -> list[Claim]:
    """All claims in the order of claims.csv: family by family, each for all runs."""
    claims = [c for family in (FIRST, CURVES) for run in runs for c in decided(run, family)]
    claims += [claim for run in runs for claim in dataset_claims(run)]
    for family in (GROUPS, EVIDENCE, FLOW):
        claims += [claim for run in runs for claim in decided(run, family)]
    claims += [claim for run in runs for claim in decided(run, reading_claims(run))]
    return claims + [claim for group in compared for claim in model_claims(group)]


def _columns(readings: Sequence[Measured], claims: Sequence[Claim]) -> dict[str, list]:
    """Value, ends, corrected p and decision of one mode."""
    primary = np.array([claim.primary for claim in claims], dtype=bool)
    p = np.array([reading.p for reading in readings], dtype=float)
    twin = np.array([bool(claim.shares_number_of) for claim in claims], dtype=bool)
    alone = ~primary & ~twin
    p[alone] = holm(p[alone].tolist())
    corrected = {(c.claim, c.model, c.dataset): p[i] for i, c in enumerate(claims)}
    for place in map(int, np.flatnonzero(twin)):
        claim = claims[place]
        p[place] = corrected[claim.shares_number_of, claim.model, claim.dataset]
    # A claim that is decided elsewhere has one p-value, for holding.
    for place, reading in enumerate(readings):
        if reading.decided_elsewhere is not None:
            p[place] = reading.p_holds
    return {
        "value": [reading.value for reading in readings],
        "decision": [r.decision(float(each)) for r, each in zip(readings, p, strict=True)],
        "low": [reading.low for reading in readings],
        "high": [reading.high for reading in readings],
        "p": p.tolist(),
    }
