"""Draw the pages' figures and tables from the data in docs/.

A page includes a figure by a line of its own: `<!-- figure: gaps -->`. `python
scripts/site/site_figures.py MODEL=RUN ...` writes docs/results.csv from the tables of runs, and
the table of README and docs/results.md from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from anchorscope.run_folder.view import RunView

DOCS = Path(__file__).parents[2] / "docs"
LEFT, RIGHT, ROW, TOP = 250, 700, 30, 44  # pixels
PAPER, STRICT = "#d9690a", "#3b8fd4"


def gaps() -> str:
    """Draw the gap of Q and A in both modes for each model and dataset, as an SVG."""
    table = pd.read_csv(DOCS / "results.csv")
    low = 20 * (table["paper_gap"].min() // 20)
    height = TOP + ROW * len(table) + 30

    def x(value: float) -> str:
        return f"{LEFT + (value - low) / -low * (RIGHT - LEFT):.1f}"

    parts = [
        f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{TOP - 12}" y2="{height - 28}" '
        f'stroke="#888" stroke-opacity="{1 if tick == 0 else 0.25}"/>'
        f'<text x="{x(tick)}" y="{height - 10}" text-anchor="middle">{str(tick).replace("-", "−")}'
        "</text>"
        for tick in range(int(low), 1, 20)
    ]
    for at, row in enumerate(table.to_dict("records")):
        y = TOP + ROW * at + ROW / 2 - 10
        name = f"{row['model']} · {row['dataset']}"
        by = f" by {row['by']}" if isinstance(row["by"], str) else ""
        title = (
            f"{name}: paper mode {row['paper_gap']}, strict mode {row['strict_gap']} "
            f"({row['strict_low']} to {row['strict_high']}), {row['finding']}{by}"
        )
        parts.append(
            f'<g><title>{escape(title)}</title><text x="{LEFT - 12}" y="{y + 4}" '
            f'text-anchor="end">{escape(name)}</text>'
            f'<circle cx="{x(row["paper_gap"])}" cy="{y}" r="5" fill="none" stroke="{PAPER}" '
            f'stroke-width="2"/><line x1="{x(row["strict_low"])}" x2="{x(row["strict_high"])}" '
            f'y1="{y}" y2="{y}" stroke="{STRICT}" stroke-width="2"/>'
            f'<circle cx="{x(row["strict_gap"])}" cy="{y}" r="5" fill="{STRICT}"/>'
            f'<text x="{RIGHT + 14}" y="{y + 4}">{escape(row["finding"] + by)}</text></g>'
        )
    key = (
        f'<circle cx="{LEFT}" cy="12" r="5" fill="none" stroke="{PAPER}" stroke-width="2"/>'
        f'<text x="{LEFT + 12}" y="16">paper mode</text>'
        f'<circle cx="{LEFT + 120}" cy="12" r="5" fill="{STRICT}"/>'
        f'<text x="{LEFT + 132}" y="16">strict mode, 95 % interval</text>'
    )
    return (
        f'<svg viewBox="0 0 880 {height}" role="img" font-size="12.5" fill="currentColor" '
        f'aria-label="Gap of Q and A in points of ΔP, in paper mode and in strict mode">'
        f"{key}{''.join(parts)}</svg>"
    )


def results_table() -> str:
    """Format the results as a Markdown table: a row for each model, a column for each dataset."""
    table = pd.read_csv(DOCS / "results.csv")
    datasets = list(dict.fromkeys(table["dataset"]))
    lines = [f"| | {' | '.join(datasets)} |", f"| --- |{' --- |' * len(datasets)}"]
    for model, rows in table.groupby("model", sort=False):
        cells = []
        for row in rows.to_dict("records"):
            by = f" by {row['by']}" if isinstance(row["by"], str) else ""
            numbers = (
                f"{row['paper_gap']} → {row['strict_gap']} "
                f"({row['strict_low']} to {row['strict_high']})"
            ).replace("-", "−")
            cells.append(f"{numbers}, `{row['finding']}`{by}, {row['power_half']:.2f}")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_results(runs: Sequence[str]) -> None:
    """Write docs/results.csv from runs, given as MODEL=FOLDER, and the pages' tables from it."""
    rows = []
    for model, folder in (given.split("=", 1) for given in runs):
        run = RunView.open(folder)
        titles = {each["name"]: each["title"] for each in run.info["datasets"]}
        for row in run.findings.to_dict("records"):
            layers = run.layers.query("dataset == @row['dataset'] and layer == @row['layer']")
            paper = layers[layers["mode"] == "paper"].set_index("pathway")["delta_p"]
            numbers = (paper["Q"] - paper["A"], row["gap"], row["gap_low"], row["gap_high"])
            by = row["by"] if isinstance(row["by"], str) else ""
            rows.append((model, titles[row["dataset"]], *(round(number, 1) for number in numbers),
                         row["finding"], by, round(row["power_half"], 2)))  # fmt: skip
    columns = "model dataset paper_gap strict_gap strict_low strict_high finding by power_half"
    pd.DataFrame(rows, columns=columns.split()).to_csv(DOCS / "results.csv", index=False)
    for page in (DOCS.parent / "README.md", DOCS / "results.md"):
        begin, _, rest = page.read_text(encoding="utf-8").partition("<!-- results -->\n")
        _, end, after = rest.partition("\n<!-- end of results -->")
        page.write_text(f"{begin}<!-- results -->\n{results_table()}{end}{after}", encoding="utf-8")


FIGURES: dict[str, Callable[[], str]] = {"gaps": gaps}


if __name__ == "__main__":
    if sys.argv[1:]:
        write_results(sys.argv[1:])
    print(results_table())
