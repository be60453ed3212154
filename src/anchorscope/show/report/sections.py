"""The report's tables and examples: answers, controls, finders, samples, how to repeat the run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pandas as pd
from scipy.special import expit

from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.curves import intervention_names
from anchorscope.show.html import Table
from anchorscope.show.report.headline import KINDS, Headline, kinds
from anchorscope.show.report.words import number, percent, span

PER_PATHWAY = 3  # examples
# The report's own size is not known yet; the others only say what is whole, and who is writing.
_NOT_RESULTS = ("report.html", "markers", "owner.json", "owner.lock", "fixed-prompt.safetensors")
Row = Mapping[str, Any]


def answers(run: RunView) -> list[dict[str, Any]]:
    """Per dataset the counts of answers, what was left out, and which finder marked spans."""
    dropped = {str(d["name"]): d.get("dropped") or {} for d in run.info["datasets"]}
    rows = []
    for name, title in run.titles.items():
        samples = where(run.samples, dataset=name)
        counts = Counter(kinds(samples))
        rows.append(
            {
                "title": title,
                "questions": len(samples),
                "accuracy": len(where(samples, verdict="right")) / (len(samples) or float("nan")),
                "counts": {kind: counts[kind] for kind in KINDS},
                "dropped": _pairs((n, reason) for reason, n in dropped.get(name, {}).items()),
                "finders": _pairs(Counter(values(samples, "finder")).most_common()),
            }
        )
    return rows


def _pairs(pairs: Iterable[tuple[object, object]]) -> str:
    """'first (second), first (second)', or 'none'."""
    return ", ".join(f"{first} ({second})" for first, second in pairs) or "none"


def controls(run: RunView, heads: Sequence[Headline]) -> Table:
    """Every intervention at each dataset's headline layer."""
    rows = []
    for head in heads:
        found = where(run.controls, dataset=head.dataset, layer=head.layer)
        for name, (label, _) in intervention_names(run.controls).items():
            for row in records(where(found, intervention=name)):
                low, high = float(row["flip_rate_low"]), float(row["flip_rate_high"])
                flips = [percent(float(row["flip_rate"])), span(low, high, percent)]
                count = 0 if pd.isna(row["n"]) else int(row["n"])
                about = [head.title, label, head.layer]
                rows.append([*about, *flips, number(float(row["delta_p"])), count])
    columns = ["Dataset", "Intervention", "Layer", "Flips", "95 % interval", "ΔP, all", "n"]
    return Table(columns, rows, text_columns=2)


def finders(run: RunView) -> Table:
    """How far two finders of exact question tokens mark the same tokens."""
    rows = [
        [
            run.titles.get(str(row["dataset"]), str(row["dataset"])),
            f"{row['finder_a']} and {row['finder_b']}",
            number(float(row["jaccard"]), 2),
            percent(float(row["identical"])),
            int(row["n"]),
        ]
        for row in records(run.spans)
    ]
    columns = ["Dataset", "Finders", "Overlap (Jaccard)", "Identical", "n"]
    return Table(columns, rows, text_columns=2)


def examples(run: RunView, heads: Sequence[Headline]) -> list[dict[str, Any]]:
    """Per dataset some samples of Q and some of A at the headline's layer, as cards."""
    return [
        {
            "title": head.title,
            "layer": head.layer,
            "cards": {} if head.layer is None else _cards(run, head.dataset, head.layer),
        }
        for head in heads
    ]


def _cards(run: RunView, dataset: str, layer: int) -> dict[str, list[dict[str, Any]]]:
    rows = agreeing(run, dataset, layer)
    samples = {str(row["id"]): row for row in records(where(run.samples, dataset=dataset))}
    return {
        pathway: [
            _card(samples[str(row["id"])], row)
            for row in draw(records(where(rows, pathway=pathway)), PER_PATHWAY)
        ]
        for pathway in ("Q", "A")
    }


def agreeing(run: RunView, dataset: str, layer: int) -> pd.DataFrame:
    """Paper-mode rows whose group the strict probe gives too: examples both readings share."""
    rows = where(run.pathways, dataset=dataset, layer=layer)
    strict = where(rows, mode="strict")
    same = set(zip(strict["id"], strict["pathway"], strict=True))
    paper = where(rows, mode="paper")
    both = [pair in same for pair in zip(paper["id"], paper["pathway"], strict=True)]
    return cast(pd.DataFrame, paper.loc[both])


def draw(rows: Sequence[Row], count: int) -> list[Row]:
    """The first rows by a hash of their id: the same every time, and not picked."""
    return sorted(rows, key=lambda row: sha256(str(row["id"]).encode()).hexdigest())[:count]


def _card(sample: Row, row: Row) -> dict[str, Any]:
    """One sample: question, answer, what was right, and the probe's P(wrong) before and after."""
    spans = zip(_list(sample["span_starts"]), _list(sample["span_stops"]), strict=True)
    start, stop = sample["answer_start"], sample["answer_stop"]
    answer_spans = [] if pd.isna(start) or pd.isna(stop) else [(int(start), int(stop))]
    accepted = ", ".join(str(text) for text in _list(sample["answers"])[:3])
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
    """The text in parts, each with whether it is inside a span; spans are kept in bounds."""
    parts, at = [], 0
    for start, stop in sorted((int(a), int(b)) for a, b in spans):
        start, stop = max(start, at), min(stop, len(text))
        if start < stop:
            parts += [(text[at:start], False), (text[start:stop], True)]
            at = stop
    return [(part, inside) for part, inside in [*parts, (text[at:], False)] if part]


def _list(value: Any) -> list[Any]:
    return [] if value is None else list(value)


def settings(run: RunView) -> str:
    """The run's configuration as JSON."""
    return json.dumps(run.info.get("config") or {}, indent=2, ensure_ascii=False)


def facts(run: RunView) -> dict[str, Table]:
    """What is needed to repeat the run: model, versions, seconds per stage, files."""
    info = run.info
    revision = {"git revision": info.get("git") or "not recorded"}
    pairs = {
        "Model": info.get("model") or {},
        "Versions": {**(info.get("versions") or {}), **revision},
    }
    return {
        **{
            name: Table(["", ""], list(values.items()), text_columns=2)
            for name, values in pairs.items()
        },
        "Time and tokens per stage": _stages(info.get("stages") or {}),
        "Files in this folder": _files(run.path),
    }


def _stages(stages: Mapping[str, Any]) -> Table:
    rows, columns = [], ["Stage", "Seconds", "Tokens", "Tokens per second"]
    overlap = any("beside" in stage for stage in stages.values())
    for name, stage in stages.items():
        seconds, tokens = stage.get("seconds"), stage.get("tokens")
        rate = f"{tokens / seconds:,.0f}" if tokens and seconds else ""
        spent = "" if seconds is None else f"{seconds:,.1f}"
        beside = [f"{stage['beside']:,.1f}" if "beside" in stage else ""] if overlap else []
        rows.append([name, spent, "" if tokens is None else f"{tokens:,}", rate, *beside])
    return Table([*columns, *(["Seconds while the model read"] if overlap else [])], rows)


def _files(folder: Path) -> Table:
    """Each file and folder of results with its size; what only the run itself needs is left out."""
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


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
