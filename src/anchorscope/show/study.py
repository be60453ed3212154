"""study.html: the panels, what was found where, every claim by model, and a link to each run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView, records
from anchorscope.show.canvas import save_figure
from anchorscope.show.charts import all_titles
from anchorscope.show.claims import grouped_claims, single_columns
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.html import Table, page_style, render
from anchorscope.show.report import finding_name
from anchorscope.show.words import number, percent, span

# No script at all; the figures are in the page.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_LONGEST = 150  # bytes of a panel's name in a file's, which has 255 at most
_PANEL = 430  # pixels of width for each model of a panel


def write_page(
    folder: Path,
    title: str,
    *,
    panels: Mapping[str, Sequence[RunView]],
    failed: Mapping[str, str],
    table: pd.DataFrame,
    claims: pd.DataFrame | None,
    costs: pd.DataFrame,
) -> Path:
    """Write study.html, replaced whole; its figures are under figures/ too.

    Args:
        folder: The folder of the study.
        title: Its title.
        panels: Title -> runs of models that are drawn side by side, as two sizes of one family.
        failed: Model -> why it has no run.
        table: The rows of study.csv.
        claims: The claims of all runs.
        costs: The rows of costs.csv.

    """
    runs = [run for panel in panels.values() for run in panel]
    page = render(
        "study.html",
        title=title,
        kind="study",
        policy=_POLICY,
        style=page_style("page.css"),
        failed=failed,
        panels={title: _pictures(folder, title, own) for title, own in panels.items()},
        findings=[_finding(folder, row) for row in records(table)],
        claims_by_model=None if claims is None else grouped_claims(claims, single_columns(runs)),
        claim_heads=lambda block: block.models,
        claim_summary=lambda block: (
            f"{block.title} of {block.columns[0].model}: {len(block.rows)} numbers read off it"
        ),
        titles=all_titles(runs),
        costs=_costs(costs),
    )
    return write_atomic(folder / "study.html", page)


def _pictures(folder: Path, title: str, runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Both modes' figure of a panel, saved under figures/ and as they go into the page."""
    models = ", ".join(run.model_name for run in runs)
    pictures = []
    for mode in MODES:
        name = f"{file_name(title)}{'' if mode == 'paper' else '_strict'}"
        files = save_figure(plot_delta_p(runs, mode=mode), folder / "figures" / name)
        content = next(file for file in files if file.suffix == ".png").read_bytes()
        picture = {
            "source": f"data:image/png;base64,{base64.b64encode(content).decode()}",
            "alt": f"ΔP by layer in {mode} mode: {models}",
            "width": _PANEL * len(runs),
        }
        pictures.append(picture)
    return pictures


def file_name(title: str) -> str:
    """The name of a panel's files: letters and digits, with a dash for what is between them.

    A long one is cut, and its checksum keeps it apart from others.
    """
    kept = "".join(char if char.isalnum() or char in "._" else "-" for char in title)
    name = "-".join(part for part in kept.split("-") if part).encode("utf-8", "replace")
    if len(name) > _LONGEST:
        digest = hashlib.sha256(name).hexdigest()[:8]
        name = name[:_LONGEST] + f"-{digest}".encode()
    return "delta_p_" + name.decode("utf-8", "ignore")


def _finding(folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a model and dataset, with a link to the run's report where there is one."""
    about = {"model": row["model"], "dataset": row["dataset"], "link": None}
    if row["state"] != "finished":
        return {**about, "finding": f"failed: {row['error']}", "why": "", "numbers": [""] * 6}
    report = folder / str(row["folder"]) / "report.html"
    gap = span(row["strict_gap_low"], row["strict_gap_high"])
    return {
        **about,
        "link": f"{quote(str(row['folder']))}/report.html" if report.is_file() else "",
        "finding": finding_name(row),
        "why": str(row["why"]),
        "numbers": [
            int(row["n"]),
            percent(row["right"] / max(1, row["right"] + row["wrong"])),
            number(row["auroc"], 2),
            number(row["paper_gap"]),
            f"{number(row['strict_gap'])} ({gap})",
            percent(row["power_half"]),
        ],
    }


def _costs(costs: pd.DataFrame) -> Table:
    """Seconds, tokens, memory and disk of each run; the plan's tokens and disk in brackets."""

    def with_plan(row: Mapping[str, Any], name: str, unit: float = 1, digits: int = 0) -> str:
        real, planned = number(float(row[name]) / unit, digits), row.get(f"{name}_plan")
        return real if planned is None else f"{real} ({number(float(planned) / unit, digits)})"

    counted = ("seconds", "states_seconds", "analysis_seconds", "tokens")
    rows = [
        [
            row["model"],
            *(with_plan(row, name) for name in counted),
            with_plan(row, "disk", 1e9, 2),
            number(row["peak_memory"] / 1e9, 1),
        ]
        for row in records(costs)
    ]
    columns = ["Model", "Seconds", "of which states", "analysis", "Tokens", "GB on disk"]
    return Table([*columns, "GB of memory"], rows)
