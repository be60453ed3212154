"""The report: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView
from anchorscope.show import charts
from anchorscope.show.charts import chart_data
from anchorscope.show.curves import collapse_notes, dashed_note
from anchorscope.show.delta_p import delta_p_chart
from anchorscope.show.evidence import evidence_parts
from anchorscope.show.html import bundle, render, source_hash, web_file
from anchorscope.show.report import sections
from anchorscope.show.report.claims import Block, run_blocks
from anchorscope.show.report.findings import MEANINGS, findings
from anchorscope.show.report.headline import headlines
from anchorscope.show.report.words import opening


def write_report(run: RunView) -> Path:
    """The path of report.html in the run folder, replaced whole."""
    return write_atomic(run.path / "report.html", page(run))


def page(run: RunView) -> str:
    """The whole page as text."""
    script = bundle("text", "axes", "page")
    # Only this script may run, and nothing may be fetched: a second lock after escaping.
    policy = (
        f"default-src 'none'; script-src {source_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return render(
        "report.html",
        title=f"{run.model_name}: where its sense of truth comes from",
        kind="report",
        policy=policy,
        style=web_file("theme.css") + web_file("page.css"),
        script=script,
        run=run,
        **_values(run),
    )


def _values(run: RunView) -> dict[str, Any]:
    """What the template shows; it skips sections that `contents` does not name."""
    heads = headlines(run)
    values = {
        "opening": opening(run, heads),
        "collapse_notes": collapse_notes([run], run.titles),
        "dashed_note": dashed_note([run]),
        "charts": {
            "delta_p": chart_data(delta_p_chart([run])),
            "probes": chart_data(charts.probes_chart(run)),
            "controls": chart_data(charts.controls_chart(run)),
        },
        "findings": findings(run, heads),
        "meanings": MEANINGS,
        "answers": sections.answers(run),
        "controls": sections.controls(run, heads),
        "finders": sections.finders(run),
        "examples": sections.examples(run, heads),
        "settings": sections.settings(run),
        "facts": sections.facts(run),
    }
    if run.has_strict:
        values |= {**_claims(run), **evidence_parts(run)}
    return values | {"contents": _contents(run, evidence=bool(values.get("evidence")))}


def _contents(run: RunView, *, evidence: bool) -> dict[str, str]:
    """The sections by their id: the picture first, then what it comes to, then all behind it."""
    meaning = "Two pathways, or something else?" if run.has_strict else "What it means"
    return {
        "opening": "ΔP, layer by layer",
        "findings": meaning,
        **({"claims": "Which claims hold"} if run.has_strict else {}),
        "answers": "Answers",
        "probes-of-layers": "How well the probes read each layer",
        "interventions": "Controls",
        "finders": "Do span finders agree?",
        **({"evidence": "The other evidence"} if evidence else {}),
        "examples": "Examples",
        "repeat": "Repeat this run",
    }


def _claims(run: RunView) -> dict[str, Any]:
    names = {",".join(run.titles): ", ".join(run.titles.values()), **run.titles}

    def heads(block: Block) -> list[str]:
        return [names.get(column.dataset, column.dataset) for column in block.columns]

    def summary(block: Block) -> str:
        return f"{block.title}: {len(block.rows)} numbers read off it"

    return {"claim_blocks": run_blocks(run), "claim_heads": heads, "claim_summary": summary}
