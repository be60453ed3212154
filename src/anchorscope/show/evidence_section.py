"""The report's section on the other evidence: a line each, then figure, table and paragraph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from anchorscope.show.evidence_charts import heads_chart, piece_chart
from anchorscope.show.evidence_figures import PIECES
from anchorscope.show.evidence_views import MEASURES, PATCHES, PREDICTORS
from anchorscope.show.evidence_words import WORDS, chosen_layer
from anchorscope.show.load import RunView, records, values, where
from anchorscope.show.markup import Safe, join, table, tag
from anchorscope.show.words import number, percent

TITLES = {
    "patching": "Another subject in the question (token patching)",
    "answer_only": "The answer without the question, the question without the answer",
    "boundary": "Knowledge boundary: what each pathway knows",
    "awareness": "Self-awareness: does the state know its pathway?",
    "saliency": "Saliency from question to answer",
    "heads": "Heads that carry the flow",
    "windows": "The knockout in fewer blocks",
}
CLAIMS = (
    "patching-flips-q", "answer-only-moves-q", "q-knows", "q-popular", "q-abstains-less",
    "state-knows-pathway",
)  # fmt: skip
SUBSETS = {"all": "all", "predicted-right": "predicted right", "predicted-wrong": "predicted wrong"}
Chart = Callable[[str, dict, str], Safe]


def evidence_there(run: RunView) -> list[str]:
    """The pieces of evidence that a report can show."""
    return [name for name in TITLES if run.has_strict and name in run.evidence]


def evidence_section(run: RunView, chart: Chart) -> Safe:
    """The whole section; `chart` makes a figure of (id, chart, caption)."""
    how = (
        "Read at the layer whose clean probe is best. Strict mode takes its groups from another "
        "probe and compares within each predicted class, so that a number there is not the "
        "predicted class under another name."
    )
    parts = [summary(run), tag("p", how, class_="quiet")]
    for name in evidence_there(run):
        inside = [_figure(run, name, chart), *_said(run, name), numbers(run, name)]
        parts.append(tag("details", tag("summary", TITLES[name]), *inside))
    return join(parts)


def summary(run: RunView) -> Safe:
    """One line per claim of the evidence and dataset: number, interval, verdict."""
    rows = [
        [
            run.titles.get(str(row["dataset"]), str(row["dataset"])),
            str(row["statement"]),
            *(_reading(row, mode) for mode in ("paper", "strict")),
        ]
        for row in records(run.claims)
        if str(row["claim"]) in CLAIMS
    ]
    head = ["Dataset", "Claim", "Paper mode", "Strict mode, within predicted classes"]
    return join([table(head, rows, text_columns=2), *_unclaimed(run)])


def _unclaimed(run: RunView) -> list[Safe]:
    """One line for each piece that no published claim speaks of."""
    lines = [
        tag("li", tag("b", f"{TITLES[name]}, {title}: "), " ".join(WORDS[name](run, dataset)[:1]))
        for name in ("saliency", "heads", "windows")
        if name in run.evidence
        for dataset, title in run.titles.items()
    ]
    return [tag("ul", *lines)] if lines else []


def _reading(row: dict[str, Any], mode: str) -> Safe:
    value, low, high = (float(row.get(f"{mode}_{n}", math.nan)) for n in ("value", "low", "high"))
    parts: list[object] = [tag("b", str(row[f"{mode}_verdict"]))]
    if math.isfinite(value):
        parts.append(f" {number(value, 2)}")
    if math.isfinite(low) and math.isfinite(high):
        parts.append(tag("span", f"{number(low, 2)} to {number(high, 2)}", class_="under quiet"))
    return join(parts)


def _figure(run: RunView, name: str, chart: Chart) -> Safe:
    identity = f"evidence-{name.replace('_', '-')}"
    if name == "heads":
        caption = "Mean ΔP when one head alone is kept from the exact question tokens."
        return chart(identity, heads_chart(run), caption)
    piece = PIECES[name](run)
    return chart(identity, piece_chart(piece), piece.caption)


def _said(run: RunView, name: str) -> list[Safe]:
    return [
        tag("p", tag("b", f"{title}. "), " ".join(filter(None, WORDS[name](run, dataset))))
        for dataset, title in run.titles.items()
    ]


def numbers(run: RunView, name: str) -> Safe:
    """The piece's table at the chosen layer of each dataset."""
    if name in ("saliency", "heads"):
        return (_saliency if name == "saliency" else _heads)(run)
    rows = [
        [title, *row] for dataset, title in run.titles.items() for row in _rows(run, name, dataset)
    ]
    head = {
        "patching": ["Replaced by", "Samples", "Q flips", "A flips", "n of Q", "n of A"],
        "answer_only": ["Mode", "Samples", "ΔP of Q", "ΔP of A", "n of Q", "n of A"],
        "windows": ["Mode", "Blocks cut", "ΔP of Q", "ΔP of A", "n of Q", "n of A"],
        "boundary": ["Measure", "Samples", "Q", "A", "Q less A", "p"],
        "awareness": ["Predictor", "Samples", "AUROC", "95 % interval", "n"],
    }[name]
    return table(["Dataset", *head], rows, text_columns=3)


def _rows(run: RunView, name: str, dataset: str) -> list[list[object]]:
    at = where(run.evidence[name], dataset=dataset, layer=chosen_layer(run, dataset))
    if name == "boundary":
        return _boundary(at)
    if name == "awareness":
        return _awareness(at)
    first, second, value, show = {
        "patching": ("intervention", "subset", "flip_rate", percent),
        "answer_only": ("mode", "subset", "delta_p", number),
        "windows": ("mode", "layers", "delta_p", number),
    }[name]
    at = where(at, mode="strict") if name == "patching" else at
    found = []
    for keys in dict.fromkeys(zip(at[first], at[second], strict=True)):
        if name != "windows" and keys[1] not in SUBSETS:
            continue
        here = where(at, **{first: keys[0], second: keys[1]})
        rows = {str(row["pathway"]): row for row in records(here)}
        q, a = rows["Q"], rows["A"]
        cells = [show(float(q[value])), show(float(a[value])), int(q["n"]), int(a["n"])]
        found.append([PATCHES.get(keys[0], keys[0]), SUBSETS.get(keys[1], keys[1]), *cells])
    return found


def _boundary(at: pd.DataFrame) -> list[list[object]]:
    """Strict mode's rows, overall and within each predicted class."""
    found = []
    strict = where(at, mode="strict")
    for name, subset in dict.fromkeys(zip(strict["measure"], strict["subset"], strict=True)):
        rows = {str(r["pathway"]): r for r in records(where(strict, measure=name, subset=subset))}
        show = percent if name != "popularity" else (lambda v: number(v, 2))
        gap = rows["Q-A"]
        ends = f"{number(float(gap['value']), 2)} ({number(float(gap['low']), 2)} to "
        ends += f"{number(float(gap['high']), 2)})"
        values_ = [show(float(rows[which]["value"])) for which in ("Q", "A")]
        p = number(float(gap["p"]), 3)
        found.append([MEASURES[name][0], SUBSETS[subset], *values_, ends, p])
    return found


def _awareness(at: pd.DataFrame) -> list[list[object]]:
    return [
        [PREDICTORS[str(row["predictor"])][0],
         f"{row['mode']}, {SUBSETS[str(row['subset'])]}", number(float(row["auroc"]), 2),
         f"{number(float(row['low']), 2)} to {number(float(row['high']), 2)}", int(row["n"])]
        for row in records(at)
    ]  # fmt: skip


def _saliency(run: RunView) -> Safe:
    given = run.evidence["saliency"]
    rows = [
        [run.titles.get(str(row["dataset"]), str(row["dataset"])),
         f"{row['loss']} loss, {row['source']} tokens", str(row["subset"]),
         number(float(row["mean"]), 2), number(float(row["dip_p"]), 3),
         number(float(row["bic"])), int(row["n"])]
        for row in records(given.loc[values(given, "layer").isna()])
    ]  # fmt: skip
    head = ["Dataset", "Saliency", "Answers", "Mean log10", "Dip p", "BIC", "n"]
    return table(head, rows, text_columns=3)


def _heads(run: RunView) -> Safe:
    """The ten lowest heads and sets of each dataset."""
    rows = []
    for dataset, title in run.titles.items():
        at = where(run.evidence["heads"], dataset=dataset).sort_values("delta_p").head(10)
        for row in records(at):
            head = f"head {int(row['head'])}" if int(row["head"]) >= 0 else "all heads"
            name = (
                str(row["set"]) if not int(row["block"]) else f"block {int(row['block'])}, {head}"
            )
            cells = [number(float(row["delta_p"]), 2),
                     f"{number(float(row['low']), 2)} to {number(float(row['high']), 2)}",
                     percent(float(row["flip_rate"])), int(row["n"])]  # fmt: skip
            rows.append([title, name, int(row["layer"]), *cells])
    columns = ["Dataset", "Cut", "Read at layer", "ΔP", "95 % interval", "Flips", "n"]
    return table(columns, rows, text_columns=2)
