"""saliency.csv: how strongly answers hang on the question, and whether that has two humps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.pathways.humps import shape
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import bootstrap_mean

SUBSETS = ("all", "right", "wrong")


def saliency_table(
    rows: pd.DataFrame,
    z: Mapping[str, int],
    *,
    model: str,
    seed: int = 0,
    resamples: int = 1000,
    entity_by_id: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """One row per dataset, loss, source, subset and layer; without a layer: summed over them.

    `rows` are those of evidence/saliency, `z` the class of each question that counts. All numbers
    are of log10 of the saliency, which is how its density is drawn: `mean` with its interval, the
    dip test's p and BIC of one component less that of two. A saliency of 0 has no logarithm and
    is left out of n. Entities are drawn for the intervals; without them questions are.
    """
    used = rows.loc[rows["id"].isin(list(z))]
    records = []
    for key, part in used.groupby(["dataset", "loss", "source"], sort=False):
        dataset, loss, source = cast("tuple[str, str, str]", key)
        for layer, values in _by_layer(cast(pd.DataFrame, part)):
            wrong = np.array([z[str(id)] for id in values.index])
            logs = _logs(values.to_numpy(dtype=float))
            about = np.array([(entity_by_id or {}).get(str(id), str(id)) for id in values.index])
            for subset in SUBSETS:
                mine = np.isin(wrong, {"all": (0, 1), "right": (0,), "wrong": (1,)}[subset])
                mine &= ~np.isnan(logs)
                here = logs[mine]
                mean = bootstrap_mean(here, seed=seed, resamples=resamples, entity=about[mine])
                seen = shape(here, seed=seed)
                records.append(
                    (
                        model,
                        dataset,
                        loss,
                        source,
                        subset,
                        mean.n,
                        *mean[:3],
                        seen.p,
                        seen.bic,
                        layer,
                    )
                )
    return pd.DataFrame(records, columns=list(table_columns.EVIDENCE["saliency"]))


def _by_layer(part: pd.DataFrame) -> Iterator[tuple[int | str, pd.Series]]:
    """Saliency by question: summed over the layers, then of each."""
    yield "", cast(pd.Series, part.groupby("id", sort=False)["saliency"].sum(min_count=1))
    for layer, at in part.groupby("layer"):
        yield int(float(str(layer))), cast(pd.Series, at.set_index("id")["saliency"])


def _logs(values: np.ndarray) -> np.ndarray:
    return np.log10(values, out=np.full(len(values), np.nan), where=values > 0)
