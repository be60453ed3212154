"""What five descriptions of the published figures say of four models, and whether a run agrees.

The descriptions contradict each other. published_figures.csv holds their numbers as they stand,
one row a number: the reading, whether it fits the paper's own text, pathway, dataset, the part of
the curve, and the range of ΔP (or of layers, where the part is `trough-layers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.claims.about_curves import (
    RECOVERY,
    Statistic,
    deepest,
    furthest_a,
    read_curve,
    recovery,
    smooth,
)
from anchorscope.claims.decision import Claim, Region
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import MODES

READ_ERROR = 5.0  # points by which a number read off a picture may be wrong
FALLING = ("keeps falling", "plateau")


def reference_bands(model_name: str) -> pd.DataFrame:
    """The published figures of a model, by its name with or without its owner; may be empty."""
    table = _table()
    mine = table.loc[table["model"] == model_name.rsplit("/", 1)[-1]]
    return cast(pd.DataFrame, mine).reset_index(drop=True)


def reading_claims(run: ClaimInputs) -> Iterator[Claim]:
    """One claim for every number of every reading that this run can speak to."""
    for row in reference_bands(run.model).to_dict("records"):
        for dataset, title in run.titles.items():
            if row["dataset"] in ("all", title, dataset):
                yield _claim(run, dataset, {str(key): value for key, value in row.items()})


def _claim(run: ClaimInputs, dataset: str, row: dict) -> Claim:
    statistic, region = _what(row, layers=run.curves[dataset, "paper"].q.shape[-1])
    measured = {mode: read_curve(run.curves[dataset, mode], statistic, region) for mode in MODES}
    fits = "fits the paper's text" if row["fits_text"] else "does not fit the paper's text"
    return Claim(
        claim=f"reading-{row['reading']}-{row['pathway']}-{row['part'].replace(' ', '-')}",
        statement=_statement(row),
        source=f"reading {row['reading']} of the figure ({fits})",
        model=run.model,
        dataset=dataset,
        paper=measured["paper"],
        strict=measured["strict"],
    )


def _statement(row: dict) -> str:
    if row["part"] == "shape":
        return f"{row['pathway']}: {row['note']}"
    what = "deepest at layers" if row["part"] == "trough-layers" else f"{row['part']}:"
    ends = f"{row['low']:g} to {row['high']:g}" if row["low"] != row["high"] else f"{row['low']:g}"
    return f"{row['pathway']}-Anchored {what} {ends}"


def _what(row: dict, *, layers: int) -> tuple[Statistic, Region]:
    """The number of the curve that a row speaks of, and where it should lie."""
    part, take_q = row["part"], row["pathway"] == "Q"
    if part == "shape":
        falls = str(row["note"]).startswith(FALLING)
        return recovery, Region(high=RECOVERY) if falls else Region(low=RECOVERY)
    if part == "trough-layers":
        return _deepest_layer, Region(low=row["low"] - 1, high=row["high"] + 1)
    region = Region(low=row["low"] - READ_ERROR, high=row["high"] + READ_ERROR)
    if part == "trough":
        return deepest, region
    if part == "all layers":
        return (_mean_q if take_q else furthest_a), region
    first, last = (int(min(max(row[f"layer_{end}"], 1), layers)) for end in ("low", "high"))
    if part == "last":
        first = last = layers

    def between(q: np.ndarray, a: np.ndarray) -> np.ndarray:
        return (q if take_q else a)[..., first - 1 : last].mean(axis=-1)

    return between, region


def _deepest_layer(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    curve = smooth(q)
    place = np.where(np.isnan(curve), np.inf, curve).argmin(axis=-1)
    return place + 1 + (q.shape[-1] - curve.shape[-1]) / 2


def _mean_q(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    return q.mean(axis=-1)


@cache
def _table() -> pd.DataFrame:
    file = resources.files("anchorscope.claims").joinpath("published_figures.csv")
    with file.open("r", encoding="utf-8") as text:
        return pd.read_csv(text, dtype={"reading": str}, keep_default_na=False).astype(
            {"low": float, "high": float, "layer_low": float, "layer_high": float}
        )
