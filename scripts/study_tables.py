"""The tables of a finished study as Markdown, for a page about it.

python scripts/study_tables.py runs/replication [--out TABLES.md]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.view import records
from anchorscope.show.report.words import number, percent, short


def as_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as a page has it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def findings(folder: Path) -> str:
    """What was found on each model and dataset, with both modes' gap."""
    head = ["model", "dataset", "n", "right", "layer", "AUROC (95 %)", "gap, paper",
            "gap, strict (95 %)", "one mechanism", "finding", "power"]  # fmt: skip
    rows = []
    for row in records(pd.read_csv(folder / "study.csv")):
        if row["state"] != "finished":
            rows.append([row["model"], row["dataset"], f"failed: {row['error']}", *[""] * 8])
            continue
        rows.append([
            row["model"], row["dataset"], str(row["n"]),
            percent(row["right"] / (row["right"] + row["wrong"])), str(int(row["layer"])),
            _interval(row, "auroc", 2), number(row["paper_gap"]), _interval(row, "strict_gap", 1),
            f"{number(row['null_low'])} to {number(row['null_high'])}", f"`{row['finding']}`",
            percent(row["power"]),
        ])  # fmt: skip
    return as_markdown(head, [[str(cell) for cell in row] for row in rows])


def _interval(row: dict, name: str, digits: int) -> str:
    value, low, high = (number(row[n], digits) for n in (name, f"{name}_low", f"{name}_high"))
    return f"{value} ({low} to {high})"


def claims(folder: Path) -> str:
    """Every claim but the readings of the published figures: paper mode, then strict mode."""
    table = pd.read_csv(folder / "claims.csv")
    table = table[~table["claim"].str.startswith("reading-")]
    head = ["claim", "model", "dataset", *(f"{mode} mode" for mode in MODES)]
    rows = [
        [row["statement"], row["model"], row["dataset"], *(_decided(row, mode) for mode in MODES)]
        for row in records(table)
    ]
    return as_markdown(head, rows)


def _decided(row: dict, mode: str) -> str:
    value = row[f"{mode}_value"]
    said = str(row[f"{mode}_verdict"])
    return said if math.isnan(value) else f"{said} ({short(value)})"


def counted(folder: Path) -> str:
    """How often each claim was decided how, over models and datasets."""
    table = pd.read_csv(folder / "claims.csv")
    table = table[~table["claim"].str.startswith("reading-")]
    rows = []
    for claim, part in table.groupby("claim", sort=False):
        said = []
        for mode in MODES:
            counts = part[f"{mode}_verdict"].value_counts()
            said.append(", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
        rows.append([f"`{claim}`", *said])
    return as_markdown(["claim", "paper mode", "strict mode"], rows)


def costs(folder: Path) -> str:
    """Seconds, tokens, disk and memory of each run, real beside plan."""
    head = ["model", "questions", "seconds", "plan", "tokens", "plan", "GB on disk", "plan",
            "GB of memory"]  # fmt: skip
    rows = [
        [row["model"], f"{row['questions']:,}"]
        + [f"{row[n]:,.0f}" for n in ("seconds", "seconds_plan", "tokens", "tokens_plan")]
        + [f"{row[n] / 1e9:.2f}" for n in ("disk", "disk_plan", "peak_memory")]
        for row in records(pd.read_csv(folder / "costs.csv"))
    ]
    return as_markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    parts = {"Findings": findings, "Claims, counted": counted, "Claims": claims, "Costs": costs}
    text = "\n\n".join(f"## {title}\n\n{make(options.study)}" for title, make in parts.items())
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(options.out or text)


if __name__ == "__main__":
    main()
