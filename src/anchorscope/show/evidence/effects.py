"""Interventions on the question, shown: token patching, the answer alone, fewer blocks cut."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import Chart, View
from anchorscope.show.curves import CONTROL, curve, pathway_series
from anchorscope.show.evidence.shown import (
    Shown,
    chosen_layer,
    claim_of,
    first_value,
    verdict,
)
from anchorscope.show.report.words import number, percent

FLOOR = "#8c564b"
PATCHES: Mapping[str, str] = {
    "patch-matched": "tokens of a matched subject",
    "patch-random": "tokens of a random subject",
    "patch-other": "other tokens of the question",
    "patch-self": "its own tokens",
}
OTHER = "Other tokens, all samples (control)"
OWN = "Its own tokens, all samples (rounding alone)"


def _main_patch(table: pd.DataFrame) -> str:
    """The patch that is drawn: with a matched donor, where there is one."""
    return next(name for name in PATCHES if name in set(values(table, "intervention")))


def patching_chart(run: RunView) -> Chart:
    """Flip rate by layer, a view per mode."""
    table = run.evidence["patching"]
    patch, views = _main_patch(table), []
    columns = ("flip_rate", "flip_low", "flip_high")
    for mode in MODES:
        rows = where(table, mode=mode, subset="all")
        drawn = where(rows, intervention=patch)
        series = pathway_series(drawn, run.titles, columns, factor=100)
        for control, label, color in (("patch-other", OTHER, CONTROL), ("patch-self", OWN, FLOOR)):
            every = where(rows, intervention=control, pathway="all")
            for part in (where(every, dataset=name) for name in run.titles):
                if len(part):
                    series.append(curve(part, columns, label=label, color=color, factor=100))
        name = f"{mode.capitalize()} mode"
        views.append(View(column=name, y="Predictions that flip (%)", series=series))
    caption = (
        f"The exact question tokens are replaced by the {PATCHES[patch]}. Groups are those of the "
        "knockout. Grey: as many other tokens of the question replaced, all samples. Brown: the "
        "noise floor, what flips where a sample’s own tokens are put in and rounding alone differs."
    )
    return Chart(views=views, caption=caption, unit="percent")


def _patching_words(run: RunView, dataset: str) -> list[str]:
    """Flips under a patch, by pathway, beside its control."""
    table, layer = run.evidence["patching"], chosen_layer(run, dataset)
    rows = where(table, dataset=dataset, layer=layer, mode="paper", subset="all")
    patch = _main_patch(table)
    q, a = (_share(rows, intervention=patch, pathway=p) for p in ("Q", "A"))
    sentences = [
        f"At layer {layer}, replacing the exact question tokens by the {PATCHES[patch]} flips the "
        f"probe’s prediction: among the Q samples {q}, among the A samples {a} (paper mode)."
    ]
    if "patch-other" in set(values(rows, "intervention")):
        sentences.append(
            "Replacing as many other tokens of the question flips "
            f"{_share(rows, intervention='patch-other', pathway='all')} of all."
        )
    if "patch-self" in set(values(rows, "intervention")):
        sentences.append(
            "With its own tokens put in, "
            f"{_share(rows, intervention='patch-self', pathway='all')} of all flip: that is "
            "rounding, the noise floor of these numbers."
        )
    return [*sentences, verdict(claim_of(run, "patching-flips-q", dataset)), *_donors(run, dataset)]


def _donors(run: RunView, dataset: str) -> list[str]:
    """How many matched donors made the prompt longer or shorter, and share the relation."""
    ids = set(values(where(run.samples, dataset=dataset), "id"))
    own = [row for row in records(where(run.donors, kind="matched")) if row["id"] in ids]
    if not own:
        return []
    resized, same_relation = (
        sum(bool(row[name]) for row in own) for name in ("resized", "same_relation")
    )
    sentences = [
        f"Of {len(own)} matched donors {same_relation} share the relation, and {resized} have "
        "another number of tokens."
    ]
    parts = [row for row in own if row.get("donor") and not row.get("whole", True)]
    if parts:
        sentences.append(
            f"{len(parts)} have another number of spans than their sample: only its longest was "
            "replaced."
        )
    return sentences


def _share(rows: pd.DataFrame, **equal: object) -> str:
    return percent(first_value(where(rows, **equal), "flip_rate"))


PATCHING = Shown(
    name="patching",
    title="Another subject in the question (token patching)",
    chart=patching_chart,
    words=_patching_words,
    claims=("patching-flips-q",),
)


def _answer_only_chart(run: RunView) -> Chart:
    """ΔP without the question, a view per mode."""
    table = where(run.evidence["answer_only"], subset="all")
    views = [
        View(
            column=f"{mode.capitalize()} mode",
            y="ΔP",
            series=pathway_series(where(table, mode=mode), run.titles),
        )
        for mode in MODES
    ]
    caption = "The answer is read again in a pass without the question. Groups are the knockout’s."
    return Chart(views=views, caption=caption)


def _answer_only_words(run: RunView, dataset: str) -> list[str]:
    """ΔP without the question, and what the question alone foretells."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["answer_only"], dataset=dataset, layer=layer, subset="all")
    q, a = (first_value(where(rows, mode="paper", pathway=p), "delta_p") for p in ("Q", "A"))
    sentences = [
        f"At layer {layer}, an answer read without its question changes the probability of the "
        f"probe’s first prediction, in {run.unit}: for Q {number(q)}, for A {number(a)} "
        "(paper mode).",
        verdict(claim_of(run, "answer-only-moves-q", dataset)),
    ]
    probe = where(run.evidence.get("question_probe", pd.DataFrame({"dataset": []})),
                  dataset=dataset)  # fmt: skip
    if len(probe) and values(probe, "auroc").notna().any():
        best = max(records(probe), key=lambda row: np.nan_to_num(row["auroc"], nan=-1.0))
        sentences.append(
            "A probe that sees only the question, before any answer, reaches AUROC "
            f"{number(float(best['auroc']), 2)} at its best layer ({int(best['layer'])}): what "
            "it reaches needs no answer at all."
        )
    return sentences


ANSWER_ONLY = Shown(
    name="answer_only",
    title="The answer without the question, the question without the answer",
    chart=_answer_only_chart,
    words=_answer_only_words,
    claims=("answer-only-moves-q",),
)


def _windows_chart(run: RunView) -> Chart:
    """ΔP by choice of blocks, a view per choice and mode."""
    table = run.evidence["windows"]
    views = [
        View(
            row=f"{mode} mode",
            column=_blocks(str(kind)),
            y="ΔP",
            series=pathway_series(where(table, layers=kind, mode=mode), run.titles),
        )
        for mode in MODES
        for kind in dict.fromkeys(values(table, "layers"))
    ]
    caption = (
        "The knockout in other blocks. The groups are always those of the run’s own knockout, so "
        "all panels show the same samples."
    )
    return Chart(views=views, caption=caption)


def _blocks(kind: str) -> str:
    if kind.startswith("window:"):
        return f"{kind.removeprefix('window:')} blocks up to the layer"
    return {"cumulative": "all blocks up to the layer", "single": "one block alone"}.get(kind, kind)


def _windows_words(run: RunView, dataset: str) -> list[str]:
    """How much of the effect a few blocks, or one alone, can do."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["windows"], dataset=dataset, layer=layer, mode="strict", pathway="Q")
    each = [f"{row['layers']} {number(float(row['delta_p']))}" for row in records(rows)]
    return [f"ΔP of Q at layer {layer} in strict mode, by the blocks cut: {'; '.join(each)}."]


WINDOWS = Shown(
    name="windows",
    title="The knockout in fewer blocks",
    chart=_windows_chart,
    words=_windows_words,
    claims=("window-moves-q",),
)
