"""Write the report of a run: one self-contained HTML file.

Every number is on the page once: sentences do not repeat what another section shows.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.special import expit

from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import (
    FEW,
    chart_data,
    collapse_notes,
    controls_chart,
    intervention_names,
    layer_spans,
    probes_chart,
)
from anchorscope.show.claims import Block, interval, run_blocks
from anchorscope.show.evidence import evidence_parts
from anchorscope.show.figures import delta_p_chart
from anchorscope.show.html import (
    Table,
    number,
    percent,
    render_page,
    two_digits,
    with_span,
)

Row = Mapping[str, Any]
MEANINGS: Mapping[str, tuple[str, str]] = {  # finding -> (name, what it means)
    "two-pathways": (
        "Two pathways",
        "samples fall into two groups that come back in a retest and that nothing known without "
        "the knockout explains",
    ),
    "explained": ("Two groups, explained", "two groups, and something else tells which is which"),
    "graded": ("By degree", "samples differ in how far they move, in one group and not two"),
    "uniform": ("One law", "one law moves all samples; what it leaves over does not come back"),
    "no-effect": (
        "No effect",
        "not even hiding the whole question moves the probe beyond the neutral control",
    ),
    "cannot-tell": (
        "This run cannot tell",
        "it would have missed two groups, or cannot exclude another reason for those it sees",
    ),
    "too-few": ("Too few samples", "fewer than 150 usable answers: no finding is made"),
}
ENOUGH = 0.8  # power below which a run cannot tell two groups from one
KINDS = ("right", "wrong", "abstain", "unusable")  # what becomes of a sample
PER_PATHWAY = 3  # examples
# The report's own size is not known yet; the others are bookkeeping of the run.
_NOT_RESULTS = ("report.html", "markers", "owner.json", "owner.lock")


def write_report(run: RunView) -> Path:
    """Write report.html into the run folder, atomically; return its path."""
    return write_atomic(run.path / "report.html", page(run))


def page(run: RunView) -> str:
    """Render the report of a run as HTML."""
    names = {",".join(run.titles): ", ".join(run.titles.values()), **run.titles}

    def claim_heads(block: Block) -> list[str]:
        return [names.get(column.dataset, column.dataset) for column in block.columns]

    evidence, outputs = evidence_parts(run), output(run)
    contents = {  # the figure first, then the findings, then the details
        "opening": "ΔP, layer by layer",
        "findings": "Two pathways, or something else?",
        "claims": "Which claims hold",
        "answers": "Answers",
        "probes-of-layers": "How well the probes read each layer",
        "interventions": "Controls",
        **({"output": "The model’s own belief in its answer"} if outputs["by_pass"].rows else {}),
        "finders": "Do span finders agree?",
        **({"evidence": "The other evidence"} if evidence else {}),
        "examples": "Examples",
        "repeat": "Repeat this run",
    }
    return render_page(
        "report.html",
        css="page.css",
        scripts=("text", "chart", "page"),
        title=f"{run.model_name}: where its sense of truth comes from",
        kind="report",
        run=run,
        contents=contents,
        collapse_notes=collapse_notes([run], run.titles),
        charts={
            "delta_p": chart_data(delta_p_chart([run])),
            "probes": chart_data(probes_chart(run)),
            "controls": chart_data(controls_chart(run)),
        },
        probes_caption=probes_chart(run).caption,
        findings=findings(run),
        meanings=MEANINGS,
        claim_blocks=run_blocks(run),
        claim_heads=claim_heads,
        interval=interval,
        claim_summary=lambda block: f"{block.title}: {len(block.rows)} numbers read off it",
        answers=answers(run),
        controls=controls(run),
        output=outputs,
        finders=finders(run),
        evidence=evidence,
        examples=examples(run),
        settings=json.dumps(run.info.get("config") or {}, indent=2, ensure_ascii=False),
        facts=facts(run),
    )


# --- The finding on each dataset ---


def findings(run: RunView) -> list[dict[str, Any]]:
    """The finding of each dataset: its row of findings.csv, its layers, and what weakens it."""
    return [
        {
            "title": title,
            "row": row,
            "name": finding_name(row),
            "layers": layer_spans([int(layer) for layer in str(row["layers"]).split()]),
            "cautions": _cautions(run, row),
            "robustness": _robustness(run, dataset),
        }
        for dataset, title in run.titles.items()
        for row in records(where(run.findings, dataset=dataset))
    ]


def finding_name(row: Row) -> str:
    """The finding of a row of findings.csv in words."""
    name, by = str(row["finding"]), str(row.get("by") or "")
    words = MEANINGS.get(name, (name, ""))[0]
    return f"{words} by {by}" if by else words


def _cautions(run: RunView, row: Row) -> list[str]:
    """What weakens a finding: low power, a probe at chance, few samples, untested conditions."""
    dataset, layer = str(row["dataset"]), int(row["layer"])
    found, half = [], float(row["power_half"])
    if row["finding"] in ("graded", "uniform", "no-effect") and half < ENOUGH:
        found.append("This run cannot tell two groups from one.")
    if row["untested"]:
        found.append(f"Not tested, for lack of the pass: {str(row['untested']).strip()}.")
    for probe in records(where(run.probes, dataset=dataset, layer=layer)):
        if math.isfinite(probe["auroc"]) and not probe["auroc_low"] > 0.5:
            shown = with_span(probe, "auroc", two_digits)
            found.append(
                f"The probe at layer {layer} is not shown to be better than chance (AUROC {shown}):"
                " its predictions, and so its flips, may mean nothing."
            )
    sizes = records(where(run.layers, dataset=dataset, layer=layer))
    small = [f"{r['pathway']} {r['n']} in {r['mode']} mode" for r in sizes if r["n"] < FEW]
    if names := ", ".join(small):
        found.append(f"Few samples ({names}): intervals from so few are too narrow to be trusted.")
    return found


def _robustness(run: RunView, dataset: str) -> str:
    """The number of other choices with the same finding, in words; empty without `--robust`."""
    if not run.has_robust:
        return ""
    first, *others = records(where(run.robust, dataset=dataset))
    same = sum(bool(row["agrees"]) for row in others)
    few = sum(row["finding"] == "too-few" for row in others if first["finding"] != "too-few")
    less = f"; {few} of them had too few answers for a finding" if few else ""
    choices = f"{same} of {len(others)} other choices"
    return f"The finding is the same under {choices}{less} (tables/robust.csv)."


# --- Tables ---


def kinds(samples: pd.DataFrame) -> pd.Series:
    """The kind of each sample: its verdict, or `unusable` if a span was not found."""
    found = values(samples, "exact_question").map(len) * values(samples, "exact_answer").map(len)
    verdict = values(samples, "verdict").astype(str)
    return verdict.where((verdict == "abstain") | (found > 0), "unusable")


def answers(run: RunView) -> list[dict[str, Any]]:
    """Counts of answers by dataset, with the dropped questions and the finders of spans."""
    dropped = {str(d["name"]): d.get("dropped") or {} for d in run.info["datasets"]}
    rows = []
    for name, title in run.titles.items():
        samples = where(run.samples, dataset=name)
        counts = Counter(kinds(samples))
        row = {
            "title": title,
            "questions": len(samples),
            "accuracy": len(where(samples, verdict="right")) / (len(samples) or math.nan),
            "counts": {kind: counts[kind] for kind in KINDS},
            "dropped": _pairs((n, reason) for reason, n in dropped.get(name, {}).items()),
            "finders": _pairs(Counter(values(samples, "finder")).most_common()),
        }
        rows.append(row)
    return rows


def _pairs(pairs: Iterable[tuple[object, object]]) -> str:
    """Join pairs as 'first (second), first (second)', or 'none'."""
    return ", ".join(f"{first} ({second})" for first, second in pairs) or "none"


def controls(run: RunView) -> Table:
    """Tabulate every intervention at the layer of each dataset's finding."""
    rows = []
    for found in records(run.findings):
        dataset, layer = found["dataset"], int(found["layer"])
        table = where(run.controls, dataset=dataset, layer=layer)
        for name, (label, _) in intervention_names(run.controls).items():
            for row in records(where(table, intervention=name)):
                flips = with_span(row, "flip_rate", percent)
                count = 0 if pd.isna(row["n"]) else int(row["n"])
                about = [run.titles[dataset], label, layer]
                rows.append([*about, flips, number(row["delta_p"]), count])
    columns = ["Dataset", "Intervention", "Layer", "Flips (95 % interval)", "ΔP, all", "n"]
    return Table(columns, rows, text_columns=2)


def output(run: RunView) -> dict[str, Table]:
    """Tabulate each pass's effect on the log-probability of the model's answer, by pathway."""
    names, by_pass, associated = intervention_names(run.controls), [], []
    for dataset, title in run.titles.items():
        own: dict[str, dict[str, Row]] = {}
        for row in records(where(run.output, predicted="all", dataset=dataset)):
            own.setdefault(str(row["pass"]), {})[str(row["pathway"])] = row
        for name, rows in own.items():
            groups = [rows[pathway] for pathway in "QA" if pathway in rows]
            cells = [with_span(row, "delta_log_p", number) for row in groups]
            ranks = [_short_rank(float(row["rank"])) for row in groups]
            if len(groups) == 2:
                by_pass.append([title, names.get(name, (name,))[0], *cells, *ranks])
        for verdict in ("right", "wrong"):
            rows = records(where(run.associated, dataset=dataset, verdict=verdict))
            shares = {row["pathway"]: with_span(row, "associated", percent) for row in rows}
            if {"Q", "A"} <= shares.keys():
                associated.append([title, verdict, shares["Q"], shares["A"]])
    head = ["Dataset", "Hidden", "Δ log P, Q", "Δ log P, A", "Rank, Q", "Rank, A"]
    return {
        "by_pass": Table(head, by_pass, text_columns=2),
        "associated": Table(["Dataset", "Answers", "Q", "A"], associated, text_columns=2),
    }


def _short_rank(rank: float) -> str:
    """Format a median rank; "not measured" for an empty group."""
    if pd.isna(rank):
        return "not measured"
    return f"{rank:,.0f}" if rank == round(rank) or rank >= 10 else f"{rank:.1f}"


def finders(run: RunView) -> Table:
    """Tabulate how far pairs of finders mark the same exact question tokens."""
    rows = []
    for row in records(run.spans):
        dataset, pair = str(row["dataset"]), f"{row['finder_a']} and {row['finder_b']}"
        shares = number(float(row["jaccard"]), 2), percent(float(row["identical"]))
        rows.append([run.titles.get(dataset, dataset), pair, *shares, int(row["n"])])
    columns = ["Dataset", "Finders", "Overlap (Jaccard)", "Identical", "n"]
    return Table(columns, rows, text_columns=2)


# --- Examples ---


def examples(run: RunView) -> list[dict[str, Any]]:
    """Example samples of Q and A for each dataset, at the layer of its finding, as cards."""
    parts = []
    for found in records(run.findings):
        rows = agreeing(run, found["dataset"], int(found["layer"]))
        samples = where(run.samples, dataset=found["dataset"])
        by_id = {str(row["id"]): row for row in records(samples)}
        cards = {
            pathway: [
                _card(by_id[str(row["id"])], row)
                for row in draw(records(where(rows, pathway=pathway)), PER_PATHWAY)
            ]
            for pathway in ("Q", "A")
        }
        parts.append(
            {"title": run.titles[found["dataset"]], "layer": found["layer"], "cards": cards}
        )
    return parts


def agreeing(run: RunView, dataset: str, layer: int) -> pd.DataFrame:
    """Keep the paper-mode rows whose group the strict probe confirms, as examples."""
    rows = where(run.pathways, dataset=dataset, layer=layer)
    return where(rows, mode="paper").merge(where(rows, mode="strict")[["id", "pathway"]])


def draw(rows: Sequence[Row], count: int) -> list[Row]:
    """Draw rows by a hash of their id: reproducible, and not picked by hand."""
    return sorted(rows, key=lambda row: sha256(str(row["id"]).encode()).hexdigest())[:count]


def _card(sample: Row, row: Row) -> dict[str, Any]:
    """A sample's card: question, answer, accepted answers, P(wrong) clean and knocked out."""
    spans = zip(sample["span_starts"], sample["span_stops"], strict=True)
    start, stop = sample["answer_start"], sample["answer_stop"]
    answer_spans = [] if pd.isna(start) or pd.isna(stop) else [(int(start), int(stop))]
    accepted = ", ".join(map(str, list(sample["answers"])[:3]))
    facts = {"Accepted": accepted, "kind of answer": str(sample["kind"])}
    return {
        "question": marked(str(sample["question"]), spans),
        "answer": marked(str(sample["answer"]), answer_spans),
        "verdict": str(sample["verdict"]),
        "facts": " · ".join(f"{name}: {value}" for name, value in facts.items() if value),
        "wrong": {
            name: float(expit(float(row[f"logit_{name}"]))) for name in ("clean", "knockout")
        },
    }


def marked(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[str, bool]]:
    """Split a text into parts, each with whether it is inside a span; spans are kept in bounds."""
    parts, at = [], 0
    for start, stop in sorted((int(a), int(b)) for a, b in spans):
        start, stop = max(start, at), min(stop, len(text))
        if start < stop:
            parts += [(text[at:start], False), (text[start:stop], True)]
            at = stop
    return [(part, inside) for part, inside in [*parts, (text[at:], False)] if part]


# --- How to repeat the run ---


def facts(run: RunView) -> dict[str, Table]:
    """What is needed to repeat the run: model, versions, seconds per stage, files."""
    info = run.info
    versions = {**(info.get("versions") or {}), "git revision": info.get("git") or "not recorded"}
    return {
        "Model": Table(["", ""], list((info.get("model") or {}).items()), text_columns=2),
        "Versions": Table(["", ""], list(versions.items()), text_columns=2),
        "Time and tokens per stage": _stages(info.get("stages") or {}),
        "Files in this folder": _files(run.path),
    }


def _stages(stages: Mapping[str, Any]) -> Table:
    rows = []
    for name, stage in stages.items():
        seconds, tokens = stage.get("seconds"), stage.get("tokens")
        rate = f"{tokens / seconds:,.0f}" if tokens and seconds else ""
        spent = "" if seconds is None else f"{seconds:,.1f}"
        rows.append([name, spent, "" if tokens is None else f"{tokens:,}", rate])
    return Table(["Stage", "Seconds", "Tokens", "Tokens per second"], rows)


def _files(folder: Path) -> Table:
    """Tabulate each file and folder of results with its size, without bookkeeping files."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for file in sorted(path for path in folder.rglob("[!.]*") if path.is_file()):
        top, *inside = file.relative_to(folder).parts
        if top not in _NOT_RESULTS:
            sizes[f"{top}/" if inside else top].append(file.stat().st_size)
    rows = [
        [f"{name} ({len(each)} files)" if name.endswith("/") else name, _size(sum(each))]
        for name, each in sizes.items()
    ]
    return Table(["File", "Size"], rows)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
