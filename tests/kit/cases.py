"""Read hard cases from a table of tests/cases: a case a line, `#` before a heading."""

from __future__ import annotations

from pathlib import Path


def read_cases(name: str) -> list[list[str]]:
    """The cells of every case; a cell that is a list separates its parts by " | "."""
    text = (Path(__file__).parents[1] / "cases" / f"{name}.tsv").read_text(encoding="utf-8")
    lines = text.rstrip("\n").split("\n")  # `splitlines` would also split at characters of a case
    return [line.split("\t") for line in lines if not line.startswith("#")]


def parts(cell: str) -> list[str]:
    """The parts of a cell that is a list."""
    return cell.split(" | ") if cell else []
