"""Error rates and power of both modes on made-up worlds.

    python benchmarks/worlds.py rates --seeds 200    # docs/worlds.csv; delete it to begin anew
    python benchmarks/worlds.py power --seeds 100    # docs/power.csv, docs/power.png
    python benchmarks/worlds.py page                 # the rates in docs/method.md, as they stand

Two to five seconds a world on one core; worlds are spread over the cores. In the page, worlds with
pathways are in bold.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from anchorscope.records import Estimate
from anchorscope.simulate.error_rates import Judged, judge_world
from anchorscope.simulate.truth import TRUE, Truth
from anchorscope.stats.intervals import rate

DOCS = Path(__file__).parents[1] / "docs"
BASE = {"layers": 2}
# What is asked of every world: the worlds with pathways first, then those without.
SETTINGS = [
    {"world": "two-pathways", "samples": 400, "noise": 0.8},
    {"world": "two-pathways", "samples": 400, "noise": 1.333},
    {"world": "two-pathways", "samples": 1500, "noise": 1.0},
    {"world": "two-pathways", "samples": 1500, "noise": 0.5, "mixture": 0.1},
    {"world": "two-pathways", "samples": 140, "noise": 0.8},
    {"world": "to-the-prior", "samples": 400},
    {"world": "to-the-prior", "samples": 1500},
    {"world": "one-way", "samples": 400, "noise": 0.8},
    {"world": "one-layer", "samples": 400, "noise": 0.8},
    {"world": "one-mechanism", "samples": 400},
    {"world": "one-mechanism", "samples": 1500},
    {"world": "noise", "samples": 400},
    {"world": "noise", "samples": 1500},
    {"world": "no-effect", "samples": 400},
    {"world": "shift", "samples": 400, "strength": 1.0},
    {"world": "shift", "samples": 1500},
    {"world": "continuum", "samples": 400},
    {"world": "continuum", "samples": 1500, "noise": 0.2},
    {"world": "skewed", "samples": 400},
    {"world": "skewed", "samples": 1500},
    {"world": "forgetting", "samples": 1500},
    {"world": "heavy-tails", "samples": 1500},
    {"world": "templates", "samples": 400, "templates": 2},
    {"world": "templates", "samples": 400, "templates": 3},
    {"world": "templates", "samples": 400, "templates": 4},
    {"world": "templates", "samples": 1000, "templates": 8},
    {"world": "two-kinds", "samples": 400},
    {"world": "two-kinds", "samples": 1000},
    {"world": "margin", "samples": 400},
    {"world": "margin", "samples": 1500},
    {"world": "blocks", "samples": 400},
    {"world": "blocks", "samples": 1500},
]
LARGE = 1500
DEFAULTS = {"strength": 4.0, "noise": 0.5, "mixture": 0.5, "templates": 4}
SEPARATIONS = (1.0, 2.0, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
MIXTURES = (0.5, 0.25)


def judged(setting: dict, seeds: int, pool: ProcessPoolExecutor) -> list[Judged]:
    """The same world from seed 0 on."""
    truths = [Truth(**BASE, **setting, seed=seed) for seed in range(seeds)]
    return list(pool.map(judge_world, truths))


def row_of(setting: dict, found: list[Judged]) -> dict:
    """Shares of the seeds, the main ones with their intervals."""
    row = {"world": setting["world"], "true": setting["world"] in TRUE}
    row |= DEFAULTS | setting | {"seeds": len(found)}
    for name in ("paper_gap", "same_gap", "strict_gap"):
        gaps = [getattr(j, name) for j in found]
        row[name] = float(np.nanmean([g.value if isinstance(g, Estimate) else g for g in gaps]))
    for name, hits in (
        ("paper_holds", [j.paper_holds for j in found]),
        ("strict_holds", [j.finding == "two-pathways" for j in found]),
    ):
        share = rate(hits)
        row |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    counts = pd.Series([j.finding for j in found]).value_counts()
    return row | {"findings": "; ".join(f"{name} {count}" for name, count in counts.items())}


def rates(seeds: int, pool: ProcessPoolExecutor) -> None:
    """docs/worlds.csv."""
    measured("worlds.csv", SETTINGS, seeds, pool)


def measured(file: str, settings: list[dict], seeds: int, pool: ProcessPoolExecutor) -> list[dict]:
    """A row per setting, written after every one; what the file holds already is kept."""
    path = DOCS / file
    rows = pd.read_csv(path).to_dict("records") if path.is_file() else []
    for setting in settings:
        count = seeds if setting["samples"] < LARGE else seeds // 2  # they take three times as long
        alike = [row for row in rows if all(row.get(key) == setting[key] for key in setting)]
        if any(row["seeds"] >= count for row in alike):
            continue
        rows.append(row_of(setting, judged(setting, count, pool)))
        pd.DataFrame(rows).to_csv(path, index=False, float_format="%.4g")
        print(rows[-1], flush=True)
    return rows


def power(seeds: int, pool: ProcessPoolExecutor) -> None:
    """docs/power.csv and its figure: two pathways, by the distance of their humps."""
    settings = [
        {"world": "two-pathways", "samples": 400, "mixture": mixture, "noise": round(4.0 / far, 3)}
        for mixture in MIXTURES
        for far in SEPARATIONS
    ]
    table = pd.DataFrame(measured("power.csv", settings, seeds, pool))
    draw(table.assign(separation=table["strength"] / table["noise"]))


def page() -> None:
    """Writes what was measured between the marks of docs/method.md."""
    shown = {"world": "world", "samples": "n", "noise": "noise", "mixture": "share of Q"}
    parts = {
        "rates": ("worlds.csv", shown | {"templates": "templates", "seeds": "seeds"}),
    }
    text = (DOCS / "method.md").read_text(encoding="utf-8")
    for name, (file, columns) in parts.items():
        start, stop = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(start)
        table = markdown(pd.read_csv(DOCS / file), columns) if (DOCS / file).is_file() else ""
        text = f"{before}{start}\n{table}{stop}{rest.split(stop)[1]}"
    (DOCS / "method.md").write_text(text, encoding="utf-8")


def markdown(table: pd.DataFrame, columns: dict[str, str]) -> str:
    """The rows as a table in Markdown, shares with their intervals."""
    head = [
        *columns.values(),
        "paper mode: two",
        "strict mode: two (95 % interval)",
        "gap: paper, same probe, strict",
        "findings",
    ]
    lines = [head, ["---"] * len(head)]
    for row in table.to_dict("records"):
        strict = " to ".join(f"{100 * row[f'strict_holds_{end}']:.1f}" for end in ("low", "high"))
        said = [
            f"{100 * row['paper_holds']:.0f} %",
            f"{100 * row['strict_holds']:.1f} % ({strict})",
        ]
        gaps = ", ".join(f"{row[name]:.1f}" for name in ("paper_gap", "same_gap", "strict_gap"))
        cells = [f"{row[name]}" for name in columns]
        if row.get("true"):
            cells[0] = f"**{cells[0]}**"
        lines.append([*cells, *said, gaps, str(row["findings"])])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(table: pd.DataFrame) -> None:
    """docs/power.png."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.8), layout="constrained")
    ax = figure.subplots()
    for mixture, part in table.groupby("mixture", sort=False):
        (line,) = ax.plot(
            part["separation"], 100 * part["strict_holds"], marker="o", ms=3,
            label=f"strict mode, {mixture:.0%} of the samples are Q",
        )  # fmt: skip
        ends = (100 * part[f"strict_holds_{end}"] for end in ("low", "high"))
        ax.fill_between(part["separation"], *ends, color=line.get_color(), alpha=0.15, lw=0)
    half = table[table["mixture"] == 0.5]
    ax.plot(
        half["separation"], 100 * half["paper_holds"], color="grey", ls="--", label="paper mode"
    )
    ax.axhline(80, color="grey", lw=0.6, ls=":")
    ax.set_xlabel("Distance of the two humps, in spreads of the knockout's noise")
    ax.set_ylabel("Worlds called two pathways (%)")
    figure.legend(loc="outside lower center", frameon=False, fontsize=8)  # clear of the curves
    figure.savefig(DOCS / "power.png", dpi=160)


def main() -> None:
    """Which table, from how many seeds, on how many cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rates", "power", "page"])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    given = parser.parse_args()
    if given.what != "page":
        with ProcessPoolExecutor(given.workers) as pool:
            {"rates": rates, "power": power}[given.what](given.seeds, pool)
    page()


if __name__ == "__main__":
    main()
