"""The published claims about detectors, and what the paired comparison makes of each."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from anchorscope.stats.intervals import ALPHA

CLAIMS = {
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
    for (claim, (detector, statement)), dataset in _each(table):
        own = table[(table["detector"] == detector) & (table["dataset"] == dataset)]
        if len(own):
            row = {"claim": claim, "statement": statement, "source": "text", "dataset": dataset}
            rows.append(row | _readings(own.set_index("split").to_dict("index")))
    return pd.DataFrame(rows)


def _each(table: pd.DataFrame) -> list[tuple[tuple[str, tuple[str, str]], str]]:
    names = list(dict.fromkeys(table["dataset"]))
    return [(claim, name) for claim in CLAIMS.items() for name in names]


def _readings(by_split: dict[Any, dict[Any, Any]]) -> dict[str, Any]:
    """Value, interval, Holm's p and decision in both modes."""
    found: dict[str, Any] = {}
    for mode, split in _MODES.items():
        row = by_split.get(split)
        if row is not None:
            value, p = float(row["vs_probe"]), float(row["vs_probe_p"])
            ends = {"low": row["vs_probe_low"], "high": row["vs_probe_high"]}
            told = {"value": value, "decision": _decision(value, p), **ends, "p": p}
            found |= {f"{mode}_{name}": of for name, of in told.items()}
    return found


def _decision(value: float, p: float) -> str:
    if not math.isfinite(p) or p >= ALPHA:
        return "undecided"
    return "holds" if value > 0 else "fails"
