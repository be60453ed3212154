"""study.html: the panels, what was found where, every claim by model, and a link to each run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView, records
from anchorscope.show.canvas import save_figure
from anchorscope.show.charts import all_titles
from anchorscope.show.claims import Block, grouped_claims, single_columns
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


class Failed(NamedTuple):
    """A model that has no run, and why."""

    model: str
    error: str


@dataclass(frozen=True, kw_only=True)
class ShownPanel:
    """Models drawn side by side, as two sizes of one family."""

    title: str
    runs: Sequence[RunView]


@dataclass(frozen=True, kw_only=True)
class ShownStudy:
    """What the page of a study shows."""

    title: str
    folder: Path
    panels: Sequence[ShownPanel]
    failed: Sequence[Failed]
    table: pd.DataFrame  # study.csv
    claims: pd.DataFrame | None
    costs: pd.DataFrame  # costs.csv


def write_page(study: ShownStudy) -> Path:
    """The path of study.html, replaced whole; its figures are under figures/ too."""
    return write_atomic(study.folder / "study.html", page(study))


def page(study: ShownStudy) -> str:
    """The whole page as text."""
    runs = [run for panel in study.panels for run in panel.runs]
    claims = None if study.claims is None else grouped_claims(study.claims, single_columns(runs))
    return render(
        "study.html",
        title=study.title,
        kind="study",
        policy=_POLICY,
        style=page_style("page.css"),
        failed=study.failed,
        panels=[(panel.title, _pictures(study.folder, panel)) for panel in study.panels],
        findings=[_finding(study.folder, row) for row in records(study.table)],
        claims_by_model=claims,
        claim_heads=lambda block: block.models,
        claim_summary=_claim_summary,
        titles=all_titles(runs),
        costs=_costs(study.costs),
    )


def _pictures(folder: Path, panel: ShownPanel) -> list[dict[str, Any]]:
    """Both modes' figure of a panel, saved under figures/ and as they go into the page."""
    models = ", ".join(run.model_name for run in panel.runs)
    pictures = []
    for mode in MODES:
        name = f"{file_name(panel.title)}{'' if mode == 'paper' else '_strict'}"
        files = save_figure(plot_delta_p(list(panel.runs), mode=mode), folder / "figures" / name)
        content = next(file for file in files if file.suffix == ".png").read_bytes()
        picture = {
            "source": f"data:image/png;base64,{base64.b64encode(content).decode()}",
            "alt": f"ΔP by layer in {mode} mode: {models}",
            "width": _PANEL * len(panel.runs),
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


def _claim_summary(block: Block) -> str:
    return f"{block.title} of {block.columns[0].model}: {len(block.rows)} numbers read off it"


def _costs(costs: pd.DataFrame) -> Table:
    """Seconds, tokens and disk of each run."""
    counted = ("seconds", "states_seconds", "analysis_seconds", "tokens")
    rows = [
        [row["model"], *(number(row[name], 0) for name in counted), number(row["disk"] / 1e9, 2)]
        for row in records(costs)
    ]
    columns = ["Model", "Seconds", "of which states", "analysis", "Tokens", "GB on disk"]
    return Table(columns, rows)
