"""Samples of both pathways as the model wrote them, with the exact tokens marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

import pandas as pd
from scipy.special import expit

from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.markup import Safe, join, tag
from anchorscope.show.report.words import percent

PER_PATHWAY = 3
Row = Mapping[str, Any]


def examples(run: RunView, head: Headline) -> Safe:
    """A card per sample: some of Q, then some of A, at the headline's layer."""
    if head.layer is None:
        return tag("p", "No layer has both groups, so there is no example to show.")
    rows = agreeing(run, head.dataset, head.layer)
    samples = {str(row["id"]): row for row in records(where(run.samples, dataset=head.dataset))}
    parts: list[Safe] = []
    for pathway, name in (("Q", "Question-anchored"), ("A", "Answer-anchored")):
        chosen = draw(records(where(rows, pathway=pathway)), PER_PATHWAY)
        cards = [card(samples[str(row["id"])], row) for row in chosen]
        none = tag("p", "No sample that both modes place here.", class_="quiet")
        title = tag("h4", f"{name} ({pathway})")
        parts.append(tag("div", title, *(cards or [none]), class_=f"examples {pathway}"))
    return tag("div", *parts, class_="pair")


def agreeing(run: RunView, dataset: str, layer: int) -> pd.DataFrame:
    """Paper-mode rows whose group the strict probe gives too: examples both readings share."""
    rows = where(run.pathways, dataset=dataset, layer=layer)
    strict = where(rows, mode="strict")
    same = set(zip(strict["id"], strict["pathway"], strict=True))
    paper = where(rows, mode="paper")
    both = [pair in same for pair in zip(paper["id"], paper["pathway"], strict=True)]
    return cast(pd.DataFrame, paper.loc[both])


def draw(rows: Sequence[Row], count: int) -> list[Row]:
    """The first rows by a hash of their id: the same every time, and nobody's favourites."""
    return sorted(rows, key=lambda row: sha256(str(row["id"]).encode()).hexdigest())[:count]


def card(sample: Row, row: Row) -> Safe:
    """One sample: question, answer, what was right, and the probe's P(wrong) before and after."""
    spans = zip(_list(sample["span_starts"]), _list(sample["span_stops"]), strict=True)
    question = marked(str(sample["question"]), spans, "question")
    start, stop = sample["answer_start"], sample["answer_stop"]
    answer_spans = [] if pd.isna(start) or pd.isna(stop) else [(int(start), int(stop))]
    answer = marked(str(sample["answer"]), answer_spans, "answer")
    gold = ", ".join(str(text) for text in _list(sample["answers"])[:3])
    verdict = str(sample["verdict"])
    return tag(
        "article",
        tag("p", question, class_="asked", dir="auto"),
        tag("p", answer, tag("span", verdict, class_=f"verdict {verdict}"), dir="auto"),
        tag("p", _facts(sample, gold), class_="quiet", dir="auto"),
        _bars(float(row["logit_clean"]), float(row["logit_knockout"])),
        class_="card",
    )


def _facts(sample: Row, gold: str) -> str:
    """The accepted answers and the kind of the answer, where they are known."""
    facts = {"Accepted": gold, "kind of answer": str(sample["kind"])}
    return " · ".join(f"{name}: {value}" for name, value in facts.items() if value)


def marked(text: str, spans: Iterable[tuple[int, int]], kind: str) -> Safe:
    """The text with `<mark>` around the characters of the spans, merged and kept in bounds."""
    parts: list[object] = []
    at = 0
    for start, stop in sorted((int(a), int(b)) for a, b in spans):
        start, stop = max(start, at), min(stop, len(text))
        if start < stop:
            parts += [text[at:start], tag("mark", text[start:stop], class_=kind)]
            at = stop
    return join([*parts, text[at:]])


def _bars(clean: float, knockout: float) -> Safe:
    """P(wrong) as two bars, before and under the knockout."""
    rows = []
    for name, logit in (("clean", clean), ("knockout", knockout)):
        share = float(expit(logit))
        fill = tag("i", style=f"width:{100 * share:.1f}%")
        bar = tag("span", fill, class_="bar", role="img", aria_label=f"P(wrong) {percent(share)}")
        rows.append(tag("div", tag("span", name), bar, tag("b", percent(share))))
    return tag("div", tag("span", "P(wrong)", class_="quiet"), *rows, class_="bars")


def _list(value: Any) -> list[Any]:
    return [] if value is None else list(value)
