"""claims.csv: every claim with its number and its verdict in both modes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorscope.claims.about_curves import curve_claims
from anchorscope.claims.about_evidence import evidence_claims
from anchorscope.claims.about_flow import flow_claims
from anchorscope.claims.about_groups import group_claims, two_pathways
from anchorscope.claims.comparisons import dataset_claims, model_claims
from anchorscope.claims.decision import Claim, Measured
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.claims.published import reading_claims
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
    its datasets, its number is what one mechanism, a kind of question or a continuum gives as
    well, and the claim is `not shown`, whichever side of its bound the number lies on.
    """
    claims = list(_claims(runs, [runs] if compared is None else compared))
    columns = {mode: _columns([getattr(claim, mode) for claim in claims], claims) for mode in MODES}
    without = _without_pathways(runs)
    for place, claim in enumerate(claims):
        measured = columns["strict"]["decision"][place] != "not measured"
        about = claim.about_groups and not claim.primary
        if about and measured and without & _places(claim):
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
    """Model and dataset of every curve that a claim speaks of."""
    return set(itertools.product(claim.model.split(", "), claim.dataset.split(",")))


def _claims(
    runs: Sequence[ClaimInputs], compared: Sequence[Sequence[ClaimInputs]]
) -> itertools.chain[Claim]:
    families = (
        two_pathways, curve_claims, dataset_claims, group_claims, evidence_claims, flow_claims,
        reading_claims,
    )  # fmt: skip
    each = (family(run) for family in families for run in runs)
    return itertools.chain(*each, *(model_claims(group) for group in compared))


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
    # A first claim settled elsewhere brings the one p-value that speaks for it.
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
