"""The report: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

from anchorscope.run_folder.view import RunView
from anchorscope.run_folder.whole import put_whole
from anchorscope.show import charts
from anchorscope.show.curves import dashed_note
from anchorscope.show.evidence.section import evidence_section, evidence_shown
from anchorscope.show.null_band import collapse_notes
from anchorscope.show.report import sections
from anchorscope.show.report.claims_table import claims
from anchorscope.show.report.examples import examples
from anchorscope.show.report.findings import evidence_table, findings
from anchorscope.show.report.headline import Headline, headlines
from anchorscope.show.report.markup import Safe, data, join, tag
from anchorscope.show.report.opening import opening
from anchorscope.show.report.sections import repeat

CIRCULAR = (
    "In paper mode the same probe decides who flips and how far they fall, so a deep curve and a "
    "flat one appear even when all samples follow one noisy mechanism. In strict mode the groups "
    "come from one probe and the effect from another, but one mechanism leaves a gap there too "
    "(the hatching). What the run shows is its finding."
)


def write_report(run: RunView) -> Path:
    """The path of report.html in the run folder, replaced whole."""
    return put_whole(run.path / "report.html", page(run))


def page(run: RunView) -> str:
    """The whole page as text."""
    import plotly.offline  # here: slow to import, and only the report needs it

    library, script = Safe(plotly.offline.get_plotlyjs()), Safe(own_file("page.js"))
    title = f"{run.model_name}: where its sense of truth comes from"
    head = tag(
        "head",
        Safe('<meta charset="utf-8">'),
        Safe(f'<meta http-equiv="Content-Security-Policy" content="{_policy(library, script)}">'),
        Safe('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Safe('<meta name="color-scheme" content="light dark">'),
        Safe('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Safe(own_file("page.css"))),
    )
    body = tag("body", tag("main", *_parts(run)), tag("script", library), tag("script", script))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def own_file(name: str) -> str:
    """The text of a file that the pages are made with: style or script."""
    return resources.files("anchorscope.show.report").joinpath(name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Only these two scripts may run, and nothing may be fetched: a second lock after escaping."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def _parts(run: RunView) -> list[Safe]:
    """The picture first, then what it comes to, then everything behind it."""
    heads = headlines(run)
    return [
        _title(run),
        _opening(run, heads),
        *_findings(run, heads),
        *_claims(run),
        _section("Answers", sections.answers(run)),
        _section("How well the probes read each layer", _probes(run)),
        _section("Controls", _controls(run, heads)),
        _section("Do span finders agree?", _finders(run)),
        *_evidence(run),
        _section("Examples", _examples(run, heads)),
        _section("Repeat this run", repeat(run)),
    ]


def _section(title: str, *inside: Safe) -> Safe:
    return tag("section", tag("h2", title), *inside)


def _title(run: RunView) -> Safe:
    date = run.info.get("date")
    ask = "Does the model’s sense of being right come from the question, or from its own answer?"
    return tag(
        "header",
        tag("p", "anchorscope", class_="brand"),
        tag("h1", run.model_name),
        tag("p", date, class_="quiet") if date else "",
        tag("p", ask, class_="lead"),
        _every_sample(),
    )


def _every_sample() -> Safe:
    """A link to the page of samples, and which command writes it."""
    link, command = tag("a", "Every sample", href="view.html"), tag("code", "anchorscope view")
    return tag("p", link, ": the page that ", command, " writes beside this one.", class_="quiet")


def _opening(run: RunView, heads: list[Headline]) -> Safe:
    """The figure, and beside or below it three sentences and what warns of them."""
    notes = [
        tag("p", f"Class collapse. {note}.", class_="box warn")
        for note in collapse_notes([run], run.titles)
    ]
    said = [tag("p", sentence) for sentence in opening(run, heads)]
    box = tag("p", tag("b", "Paper mode is circular. "), CIRCULAR, class_="box")
    words = tag("div", *said, box, *notes, class_="said")
    return tag("section", tag("h2", "ΔP, layer by layer"), _delta_p(run), words, class_="opening")


def _findings(run: RunView, heads: list[Headline]) -> list[Safe]:
    """The finding on each dataset, and the numbers behind it where the run has them."""
    if not run.has_strict:
        return [_section("What it means", findings(run, heads))]
    more = tag("details", tag("summary", "The numbers behind it"), evidence_table(run))
    return [_section("Two pathways, or something else?", findings(run, heads), more)]


def _claims(run: RunView) -> list[Safe]:
    """The claims; nothing for a run that lacks them."""
    return [_section("Which claims hold", claims(run))] if run.has_strict else []


def _evidence(run: RunView) -> list[Safe]:
    """The other evidence; nothing for a run that lacks it."""
    if not evidence_shown(run):
        return []
    return [_section("The other evidence", evidence_section(run, _chart))]


def _chart(identity: str, chart: dict, caption: str) -> Safe:
    views = chart["views"]
    buttons = [
        tag("button", view["label"], type="button", data_view=str(index))
        for index, view in enumerate(views)
    ]
    switch = tag("div", *buttons, class_="switch", role="group", aria_label="View")
    return tag(
        "figure",
        switch if len(views) > 1 else "",
        tag("div", id=identity, class_="chart", role="group", aria_label=caption),
        tag("div", class_="legend", role="group", aria_label="Curves: press to hide or show"),
        data(f"{identity}-data", chart),
        tag("noscript", tag("p", "The charts need JavaScript; figures/ holds them as images.")),
        tag("figcaption", caption),
    )


def _delta_p(run: RunView) -> Safe:
    caption = (
        "Change of the probability of the probe’s first prediction when the exact question tokens "
        "are cut off. Solid: Q-anchored; dashed: A-anchored; bands: 95 % intervals; pale: the same "
        "with as many neutral tokens cut off, grouped by their own flips; hatched: where Q would "
        "lie if one mechanism moved all samples. Hollow points have fewer than 10 samples."
    )
    return _chart("delta-p", charts.delta_p_chart(run), caption)


def _probes(run: RunView) -> Safe:
    caption = (
        "How well a linear probe tells wrong answers from right ones, on questions it never saw. "
        f"Dotted: chance.{dashed_note([run])} Where a probe is at chance, its flips mean nothing."
    )
    return _chart("probes", charts.probes_chart(run), caption)


def _controls(run: RunView, heads: list[Headline]) -> Safe:
    caption = "Share of the probe’s predictions that flip, by intervention; bands: 95 % intervals."
    return join(
        [
            _chart("controls", charts.controls_chart(run), caption),
            sections.controls(run, heads),
            tag("h3", "Within each predicted class"),
            sections.predicted_classes(heads),
        ]
    )


def _finders(run: RunView) -> Safe:
    said = (
        "The exact question tokens decide what is cut. Here two ways of finding them are compared."
    )
    return join([tag("p", said), sections.finders(run)])


def _examples(run: RunView, heads: list[Headline]) -> Safe:
    said = (
        "Drawn by a hash of their ids, not picked, from the samples that both modes place in the "
        "same group. Marked: the "
    )
    marks = [tag("mark", "exact question tokens", class_="question"), " and the "]
    marks.append(tag("mark", "exact answer tokens", class_="answer"))
    parts: list[Safe] = [tag("p", said, *marks, ".")]
    for head in heads:
        where = "" if head.layer is None else f", layer {head.layer}"
        parts += [tag("h3", f"{head.title}{where}"), examples(run, head)]
    return join(parts)
