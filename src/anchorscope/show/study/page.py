"""study.html: the panels, what was found where, every claim by model, and the way to each run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView, records
from anchorscope.run_folder.whole import put_whole
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.report.findings import finding_name
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.page import CIRCULAR, own_file
from anchorscope.show.report.words import number, percent
from anchorscope.show.saving import save_figure
from anchorscope.show.study.claims import claims_by_model

# No script at all; the figures are in the page.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_STYLE = ".study img { max-width: 100%; height: auto; border-radius: 6px; }"
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
    """The path of study.html, replaced whole; its figures lie under figures/ too."""
    return put_whole(study.folder / "study.html", page(study))


def page(study: ShownStudy) -> str:
    """The whole page as text."""
    head = tag(
        "head",
        Safe('<meta charset="utf-8">'),
        Safe(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Safe('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Safe('<meta name="color-scheme" content="light dark">'),
        Safe('<link rel="icon" href="data:,">'),
        tag("title", study.title),
        tag("style", Safe(own_file("page.css") + _STYLE)),
    )
    body = tag("body", tag("main", *_parts(study), class_="study"))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _parts(study: ShownStudy) -> list[Safe]:
    title = tag("header", tag("p", "anchorscope", class_="brand"), tag("h1", study.title))
    parts = [title, *(_failure(failed) for failed in study.failed)]
    if study.panels:
        parts.append(tag("p", tag("b", "Paper mode is circular. "), CIRCULAR, class_="box"))
    parts += [_panel(study, panel) for panel in study.panels]
    parts.append(_section("What was found", findings_table(study)))
    if study.claims is not None:
        runs = [run for panel in study.panels for run in panel.runs]
        parts.append(_section("Which claims hold", claims_by_model(study.claims, runs)))
    parts.append(_section("What it took", costs_table(study.costs)))
    return parts


def _section(title: str, *inside: Safe) -> Safe:
    return tag("section", tag("h2", title), *inside)


def _failure(failed: Failed) -> Safe:
    said = f" has no results: {failed.error}"
    return tag("p", tag("b", failed.model), said, class_="box warn")


def _panel(study: ShownStudy, panel: ShownPanel) -> Safe:
    """Both modes' figure of the models of a panel."""
    return _section(panel.title, *(_figure(study.folder, panel, mode) for mode in MODES))


def _figure(folder: Path, panel: ShownPanel, mode: Mode) -> Safe:
    """One figure, saved under figures/ and put into the page."""
    stem = folder / "figures" / f"{file_name(panel.title)}{'' if mode == 'paper' else '_strict'}"
    files = save_figure(plot_delta_p(list(panel.runs), mode=mode), stem)
    picture = next(file for file in files if file.suffix == ".png").read_bytes()
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    models = ", ".join(run.model_name for run in panel.runs)
    alt = f"ΔP by layer in {mode} mode: {models}"
    image = tag("img", src=source, alt=alt, width=_PANEL * len(panel.runs))
    return tag("figure", Safe(image.removesuffix("</img>")))


def file_name(title: str) -> str:
    """The name of a panel's files: letters, digits and what lies between them as a dash.

    A long one is cut, and told from others by its checksum.
    """
    kept = "".join(char if char.isalnum() or char in "._" else "-" for char in title)
    name = "-".join(part for part in kept.split("-") if part).encode("utf-8", "replace")
    if len(name) > _LONGEST:
        digest = hashlib.sha256(name).hexdigest()[:8]
        name = name[:_LONGEST] + f"-{digest}".encode()
    return "delta_p_" + name.decode("utf-8", "ignore")


def findings_table(study: ShownStudy) -> Safe:
    """A row for each model and dataset, with the way to the run's report."""
    head = [
        "Model",
        "Dataset",
        "Finding",
        "n",
        "right",
        "AUROC",
        "Gap, paper",
        "Gap, strict (one mechanism)",
        "Power",
    ]
    rows = [_finding(study.folder, row) for row in records(study.table)]
    said = "Where two pathways are not found they may still be there: the power says how likely."
    return join([table(head, rows, text_columns=3), tag("p", said, class_="quiet")])


def _finding(folder: Path, row: Mapping[str, Any]) -> list[object]:
    if row["state"] != "finished":
        return [row["model"], row["dataset"], f"failed: {row['error']}", *[""] * 6]
    return [
        _link(folder, str(row["folder"]), str(row["model"])),
        row["dataset"],
        tag("span", finding_name(row), title=str(row["why"])),
        int(row["n"]),
        percent(row["right"] / max(1, row["right"] + row["wrong"])),
        number(row["auroc"], 2),
        number(row["paper_gap"]),
        f"{number(row['strict_gap'])} ({number(row['strict_gap_low'])} to "
        f"{number(row['strict_gap_high'])})",
        percent(row["power_half"]),
    ]


def _link(folder: Path, run: str, name: str) -> object:
    """The model's name, leading to its report where the run has one."""
    if not (folder / run / "report.html").is_file():
        return name
    return tag("a", name, href=f"{quote(run)}/report.html")


def costs_table(costs: pd.DataFrame) -> Safe:
    """Seconds, tokens, memory and disk of each run; the plan's tokens and disk in brackets."""
    head = [
        "Model",
        "Seconds",
        "of which states",
        "analysis",
        "Tokens",
        "GB on disk",
        "GB of memory",
    ]
    rows = [
        [
            row["model"],
            *(_beside(row, name) for name in ("seconds", "states_seconds", "analysis_seconds")),
            _beside(row, "tokens"),
            _beside(row, "disk", 1e9, digits=2),
            number(row["peak_memory"] / 1e9, 1),
        ]
        for row in records(costs)
    ]
    how = "In brackets: what the plan said before the run."
    return join([table(head, rows), tag("p", how, class_="quiet")])


def _beside(row: Mapping[str, Any], name: str, unit: float = 1, *, digits: int = 0) -> str:
    real, planned = number(float(row[name]) / unit, digits), row.get(f"{name}_plan")
    return real if planned is None else f"{real} ({number(float(planned) / unit, digits)})"
