"""The published claims about detectors, decided by their paired comparison with the probe."""

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
    for claim, (detector, statement) in CLAIMS.items():
        for dataset in dict.fromkeys(table["dataset"]):
            own = table[(table["detector"] == detector) & (table["dataset"] == dataset)]
            if len(own):
                row = {"claim": claim, "statement": statement, "source": "text", "dataset": dataset}
                by_split = own.set_index("split").to_dict("index")
                for mode, split in _MODES.items():
                    if split in by_split:
                        row |= _columns(mode, by_split[split])
                rows.append(row)
    return pd.DataFrame(rows)


def _columns(mode: str, row: dict[Any, Any]) -> dict[str, Any]:
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
