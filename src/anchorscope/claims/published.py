"""Five descriptions of the published figures of four models, and whether a run agrees.

The descriptions contradict each other. published_figures.csv holds their numbers as they are, one
row a number: the reading, whether it fits the paper's own text, pathway, dataset, the part of the
curve, and the range of ΔP (or of layers, where the part is `trough-layers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.claims.about_curves import (
    RECOVERY,
    Statistic,
    deepest,
    deepest_layer,
    furthest_a,
    measure_curve,
    recovery,
)
from anchorscope.claims.decision import DatasetClaim, Measured, Region
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Mode

READ_ERROR = 5.0  # points by which a number read off a picture may be wrong
FALLING = ("keeps falling", "plateau")
Row = Mapping[str, Any]


def reference_bands(model_name: str) -> pd.DataFrame:
    """The published figures of a model, by its name with or without its owner; may be empty."""
    table = _table()
    own = table.loc[table["model"] == model_name.rsplit("/", 1)[-1]]
    return cast(pd.DataFrame, own).reset_index(drop=True)


def reading_claims(run: ClaimInputs) -> Iterator[DatasetClaim]:
    """One claim for every number of every reading of this model's figures."""
    for row in cast("list[dict[str, Any]]", reference_bands(run.model).to_dict("records")):
        fits = "fits the paper's text" if row["fits_text"] else "does not fit the paper's text"
        yield DatasetClaim(
            claim=f"reading-{row['reading']}-{row['pathway']}-{row['part'].replace(' ', '-')}",
            statement=_statement(row),
            source=f"reading {row['reading']} of the figure ({fits})",
            measure=partial(_measure, row),
        )


def _measure(row: Row, run: ClaimInputs, dataset: str, mode: Mode) -> Measured | None:
    if row["dataset"] not in ("all", run.titles[dataset], dataset):
        return None
    statistic, region = _expected(row, layers=run.curves[dataset, "paper"].q.shape[-1])
    return measure_curve(run, dataset, mode, statistic=statistic, region=region)


def _statement(row: Row) -> str:
    if row["part"] == "shape":
        return f"{row['pathway']}: {row['note']}"
    part = "deepest at layers" if row["part"] == "trough-layers" else f"{row['part']}:"
    ends = f"{row['low']:g} to {row['high']:g}" if row["low"] != row["high"] else f"{row['low']:g}"
    return f"{row['pathway']}-Anchored {part} {ends}"


def _expected(row: Row, *, layers: int) -> tuple[Statistic, Region]:
    """The number of the curves that a row describes, and the region it should be in."""
    part, take_q = row["part"], row["pathway"] == "Q"
    if part == "shape":
        falls = str(row["note"]).startswith(FALLING)
        return recovery, Region(high=RECOVERY) if falls else Region(low=RECOVERY)
    if part == "trough-layers":
        return deepest_layer, Region(low=row["low"] - 1, high=row["high"] + 1)
    region = Region(low=row["low"] - READ_ERROR, high=row["high"] + READ_ERROR)
    if part == "trough":
        return deepest, region
    if part == "all layers" and not take_q:
        return furthest_a, region
    first, last = (int(min(max(row[f"layer_{end}"], 1), layers)) for end in ("low", "high"))
    if part == "last":
        first = last = layers
    if part == "all layers":
        first, last = 1, layers

    def between(q: np.ndarray, a: np.ndarray) -> np.ndarray:
        return (q if take_q else a)[..., first - 1 : last].mean(axis=-1)

    return between, region


@cache
def _table() -> pd.DataFrame:
    file = resources.files("anchorscope.claims").joinpath("published_figures.csv")
    with file.open("r", encoding="utf-8") as text:
        return pd.read_csv(text, dtype={"reading": str}, keep_default_na=False).astype(
            {"low": float, "high": float, "layer_low": float, "layer_high": float}
        )
