"""The claims of runs on disk, and as a table of the report."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from anchorscope.pathways.claims import RunEvidence, claims_table, from_tables
from anchorscope.show.load import RunView


def claims_of(runs: Sequence[RunView]) -> pd.DataFrame:
    """The claims table of one run or several."""
    return claims_table([evidence(run) for run in runs])


def evidence(run: RunView) -> RunEvidence:
    """A run folder as the claims see it."""
    return from_tables(run.info, run.pathways, run.strict, run.verdict, run.samples)
