"""The tables as files: CSV for programs, Markdown and LaTeX for readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

_HEAD = (
    ("title", "detector"), ("auroc", "AUROC"), ("auprc", "AUPRC"), ("ece", "ECE"),
    ("brier", "Brier"), ("coverage_5", "cov. 5 %"), ("coverage_10", "cov. 10 %"),
    ("vs_probe", "vs probe"), ("vs_text", "vs text"),
    ("extra_passes", "passes"), ("ms_per_answer", "ms"),
)  # fmt: skip
SIGNIFICANT = 0.05


def write_tables(folder: Path, tables: dict[str, pd.DataFrame]) -> list[Path]:
    """The files written under tables/: each table as CSV, `detectors` as Markdown and LaTeX too."""
    home = folder / "tables"
    home.mkdir(parents=True, exist_ok=True)
    files = []
    for name, table in tables.items():
        files.append(home / f"{name}.csv")
        table.to_csv(files[-1], index=False)
    if "detectors" in tables:
        for ending, write in (("md", to_markdown), ("tex", to_latex)):
            files.append(home / f"detectors.{ending}")
            files[-1].write_text(write(tables["detectors"]), encoding="utf-8")
    return files


def to_markdown(table: pd.DataFrame) -> str:
    """One Markdown table of AUROC over all datasets, then one for each dataset and split."""
    blocks = [_overview(table)]
    for name, split, rows in _parts(table):
        head, body = _cells(rows)
        lines = [f"### {name}, {_split(split)}", ""]
        lines += [_row(head), _row(["---"] * len(head)), *(_row(cells) for cells in body)]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, _NOTE]) + "\n"


def _overview(table: pd.DataFrame) -> str:
    """AUROC with folds at random / disjoint by entity, a column for each dataset."""
    names = list(dict.fromkeys(table["dataset"]))
    body = []
    for (_, title), rows in _groups(table, ["detector", "title"]):
        found = {(row["dataset"], row["split"]): row for row in rows.to_dict("records")}
        body.append([title, *(_both(found, name) for name in names)])
    lines = [_row(["AUROC, random / entity", *names]), _row(["---"] * (1 + len(names)))]
    return "\n".join([*lines, *map(_row, body)])


def _both(found: dict[Any, Any], name: str) -> str:
    rows = [found[name, split] for split in ("random", "entity") if (name, split) in found]
    return " / ".join(f"{row['auroc']:.3f}{_star(row.get('vs_probe_p'))}" for row in rows) or "–"


def _star(p: float | None) -> str:
    return "*" if p is not None and p < SIGNIFICANT else ""


def to_latex(table: pd.DataFrame) -> str:
    """A LaTeX tabular (booktabs) for each dataset and split."""
    blocks = []
    for name, split, rows in _parts(table):
        head, body = _cells(rows)
        lines = [
            f"% {name}, {_split(split)}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        ]
        lines += [r"\toprule", _tex(head), r"\midrule", *(_tex(cells) for cells in body)]
        blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks) + "\n"


_NOTE = (
    "AUROC with its 95 % interval; in the first table * where it differs from the single probe's "
    f"(Holm's p below {SIGNIFICANT}). cov.: share of answers that can be given at that share of "
    "wrong ones. vs: difference of AUROC from the single probe and from the best text-only "
    "control, * likewise. passes: forward passes beside those that wrote the answer; ms: for the "
    "score alone."
)


def _parts(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """The rows of each dataset and split, in the table's order."""
    found = _groups(table, ["dataset", "split"])
    return [(str(name), str(split), rows) for (name, split), rows in found]


def _groups(table: pd.DataFrame, columns: list[str]) -> Any:
    return table.groupby(columns, sort=False)


def _cells(rows: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    used = [(column, head) for column, head in _HEAD if column in rows.columns]
    body = [[_cell(row, column) for column, _ in used] for row in rows.to_dict("records")]
    return [head for _, head in used], body


def _cell(row: dict[Any, Any], column: str) -> str:
    value = row[column]
    if column == "title":
        return str(value)
    if pd.isna(value):
        return "–"
    if column == "auroc":
        return f"{value:.3f} [{row['auroc_low']:.3f}, {row['auroc_high']:.3f}]"
    if column.startswith("vs_"):
        p = row[f"{column}_p"]
        return "–" if pd.isna(p) else f"{value:+.3f}{_star(p)}"
    if column.startswith("coverage"):
        return f"{value:.2f}"
    return f"{value:.0f}" if column == "extra_passes" else f"{value:.3f}"


def _split(split: str) -> str:
    return "folds at random" if split == "random" else "folds disjoint by entity"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tex(cells: Sequence[str]) -> str:
    safe = [c.replace("%", r"\%").replace("_", r"\_").replace("β", r"$\beta$") for c in cells]
    return " & ".join(c.replace("–", "--") for c in safe) + r" \\"
