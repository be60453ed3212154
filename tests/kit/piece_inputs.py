"""Make the inputs of a piece of evidence from readings alone; a row of its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.evidence.pieces import PieceInputs
from anchorscope.probes.folds import Covariates
from anchorscope.probes.probe_set import Readings


def inputs_for(
    readings: Readings, *, covariates: Covariates | None = None, rows: Any = None,
    states: Any = None, abstained: Readings | None = None, dataset: str = "d", **options: Any,
) -> PieceInputs:  # fmt: skip
    """The inputs for a model "m"; `options` are fields of the config, covariates may be unknown."""
    unknown = np.full(len(readings.ids), np.nan)
    return PieceInputs(
        model="m",
        dataset=dataset,
        config=Config(**{"resamples": 1000, **options}),
        readings=readings,
        covariates=covariates or Covariates(unknown, unknown),
        states=states or {},
        abstained=abstained,
        rows=rows or {},
    )


def row(table: pd.DataFrame, **equal: Any) -> pd.Series:
    """The one row in which these columns have these values."""
    keep = np.logical_and.reduce([table[name] == value for name, value in equal.items()])
    (found,) = [r for _, r in table[keep].iterrows()]
    return found
