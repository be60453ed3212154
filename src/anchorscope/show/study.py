"""Write study.html: panels, findings, claims by model, and a link to each run's report."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.canvas import save_figure
from anchorscope.show.charts import all_titles
from anchorscope.show.claims import grouped_claims, single_columns
from anchorscope.show.figures import plot_delta_p
from anchorscope.show.html import render_page
from anchorscope.show.report import finding_name

_LONGEST = 150  # bytes of a panel's title in a file name, which has 255 at most
_STATES = ("preparation", "answers and states", "remaining questions")  # read with the model
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
    """Write study.html atomically, and its figures under figures/.

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
    page = render_page(
        "study.html",
        css="page.css",
        title=title,
        kind="study",
        failed=failed,
        panels={title: _pictures(folder, title, own) for title, own in panels.items()},
        findings=[_linked(folder, row) for row in records(table)],
        claims_by_model=None if claims is None else grouped_claims(claims, single_columns(runs)),
        claim_heads=lambda block: block.models,
        claim_summary=lambda block: (
            f"{block.title} of {block.columns[0].model}: {len(block.rows)} numbers read off it"
        ),
        titles=all_titles(runs),
        costs=records(costs),
    )
    return write_atomic(folder / "study.html", page)


def _pictures(folder: Path, title: str, runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Save a panel's figure of each mode under figures/; return them as images for the page."""
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
    """The file name of a panel: letters, digits, dots and underscores, joined by dashes.

    A long one is cut and ends in a checksum, so that names stay distinct.
    """
    kept = "".join(char if char.isalnum() or char in "._" else "-" for char in title)
    name = "-".join(part for part in kept.split("-") if part).encode("utf-8", "replace")
    if len(name) > _LONGEST:
        digest = hashlib.sha256(name).hexdigest()[:8]
        name = name[:_LONGEST] + f"-{digest}".encode()
    return "delta_p_" + name.decode("utf-8", "ignore")


def _linked(folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of study.csv, its finding in words, and a link to the report where there is one."""
    if row["state"] != "finished":
        return {**row, "words": f"failed: {row['error']}", "link": ""}
    report = folder / str(row["folder"]) / "report.html"
    link = f"{quote(str(row['folder']))}/report.html" if report.is_file() else ""
    return {**row, "words": finding_name(row), "link": link}


def dataset_rows(view: RunView) -> list[dict[str, Any]]:
    """The numbers of study.csv of a finished run, a row for each dataset."""
    rows = []
    for dataset in view.titles:
        verdicts = Counter(values(where(view.samples, dataset=dataset), "verdict"))
        (found,) = records(where(view.findings, dataset=dataset))
        at = {"dataset": dataset, "layer": found["layer"]}
        (probe,) = records(where(view.probes, **at))
        paper = where(view.layers, mode="paper", **at).set_index("pathway")["delta_p"]
        row = {
            "dataset": dataset,
            "right": verdicts["right"],
            "wrong": verdicts["wrong"],
            "abstained": verdicts["abstain"],
            **{name: probe[name] for name in ("auroc", "auroc_low", "auroc_high")},
            "paper_gap": paper["Q"] - paper["A"],
        }
        row |= {f"strict_{name}": found[name] for name in ("gap", "gap_low", "gap_high")}
        same = ("n", "layer", "finding", "by", "why", "power_half", "power_fifth")
        rows.append(row | {name: found[name] for name in same})
    return rows


def cost_row(view: RunView) -> dict[str, Any]:
    """Make a row of costs.csv: a run's seconds, tokens and bytes, removed states included."""
    stages: dict[str, dict[str, float]] = view.info["stages"]
    seconds = {name: stage["seconds"] for name, stage in stages.items()}
    states = sum(seconds.get(name, 0.0) for name in _STATES)
    neither = sum(seconds.get(name, 0.0) for name in ("model", "report"))
    return {
        "model": view.model_name,
        "seconds": sum(seconds.values()),
        "states_seconds": states,
        "analysis_seconds": sum(seconds.values()) - states - neither,
        "tokens": sum(stage["tokens"] for stage in stages.values()),
        "disk": sum(int(entry.split()[0]) for entry in view.info["files"].values()),
    }
