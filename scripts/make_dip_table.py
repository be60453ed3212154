"""Simulate the dip of uniform samples, and write src/anchorscope/stats/dip_table.json.

python scripts/make_dip_table.py     # about two minutes on one core
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from anchorscope.stats.humps import dip

SIZES = (4, 6, 10, 15, 25, 40, 65, 100, 160, 250, 400, 700, 1200, 2000)
LEVELS = (0.0, *np.arange(0.05, 0.90, 0.05).round(2), 0.9, 0.925, 0.95, 0.96, 0.97, 0.975,
          0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999)  # fmt: skip
DRAWS, SEED = 5000, 1985
TARGET = Path(__file__).parents[1] / "src/anchorscope/stats/dip_table.json"


def main() -> None:
    """Write the table: one row of quantiles for each sample size."""
    rng = np.random.default_rng(SEED)
    rows = []
    for n in SIZES:
        found = np.array([dip(rng.random(n)) for _ in range(DRAWS)]) * np.sqrt(n)
        rows.append(np.quantile(found, LEVELS).round(5).tolist())
    table = {"sizes": SIZES, "levels": [float(x) for x in LEVELS], "quantiles": rows}
    TARGET.write_text(json.dumps(table) + "\n", encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
