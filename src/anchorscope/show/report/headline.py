"""The few numbers the report's sentences are written from, one `Headline` per dataset."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from anchorscope.records import Estimate, Mode
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.curves import FEW
from anchorscope.stats.intervals import difference

KINDS = ("right", "wrong", "abstain", "unusable")  # what becomes of a sample
NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Share of the samples that flip, by the class the probe predicted before the knockout."""

    right: float  # of those predicted right; NaN where there are none
    wrong: float
    n_right: int
    n_wrong: int

    @property
    def total(self) -> bool:
        """Whether the pathway is little more than the predicted class under another name."""
        measured = math.isfinite(self.right) and math.isfinite(self.wrong)
        return measured and abs(self.right - self.wrong) > 0.8


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A dataset at the layer of its finding (None: no layer has both groups)."""

    dataset: str
    title: str
    layer: int | None
    paper_q: Estimate = NOTHING
    paper_a: Estimate = NOTHING
    strict_q: Estimate = NOTHING
    strict_a: Estimate = NOTHING
    neutral_flips: Estimate = NOTHING  # a share, 0 to 1
    neutral_delta: Estimate = NOTHING  # points; its interval is not in the tables
    auroc: Estimate = NOTHING
    collapse: Collapse | None = None
    unit: str = "points"
    most: tuple[int, int] = (0, 0)  # most samples that Q and A have at any layer, paper mode

    @property
    def paper_gap(self) -> Estimate:
        return difference(self.paper_q, self.paper_a)

    @property
    def strict_gap(self) -> Estimate:
        return difference(self.strict_q, self.strict_a)

    @property
    def flip_share(self) -> float:
        total = self.paper_q.n + self.paper_a.n
        return self.paper_q.n / total if total else math.nan


def kinds(samples: pd.DataFrame) -> pd.Series:
    """What became of each sample; `unusable` was judged, but a span was not found."""
    found = values(samples, "exact_question").map(len) * values(samples, "exact_answer").map(len)
    verdict = values(samples, "verdict").astype(str)
    return verdict.where((verdict == "abstain") | (found > 0), "unusable")


def headlines(run: RunView) -> list[Headline]:
    """One per dataset, in the run's order."""
    return [headline(run, name, title) for name, title in run.titles.items()]


def headline(run: RunView, dataset: str, title: str) -> Headline:
    """The dataset's numbers at the layer that was settled before any knockout was read.

    A run without strict mode has none, and shows the layer of paper mode's widest gap.
    """
    table = where(run.layers, dataset=dataset)
    layer = settled_layer(run, dataset) or widest_layer(table)
    if layer is None:
        return Headline(dataset=dataset, title=title, layer=None, most=_most(table))
    controls = where(run.controls, dataset=dataset, intervention="neutral")
    return Headline(
        dataset=dataset,
        title=title,
        layer=layer,
        paper_q=_effect(table, layer, "paper", "Q"),
        paper_a=_effect(table, layer, "paper", "A"),
        strict_q=_effect(table, layer, "strict", "Q"),
        strict_a=_effect(table, layer, "strict", "A"),
        neutral_flips=_at(controls, layer, "flip_rate"),
        neutral_delta=_at(controls, layer, "delta_p"),
        auroc=_at(where(run.probes, dataset=dataset), layer, "auroc", n="n_test"),
        collapse=collapse(run, dataset, layer),
        unit=run.unit,
        most=_most(table),
    )


def settled_layer(run: RunView, dataset: str) -> int | None:
    """The layer of the finding: the one whose clean probe is best."""
    rows = records(where(run.findings, dataset=dataset)) if run.has_strict else []
    return int(rows[0]["layer"]) if rows else None


def widest_layer(table: pd.DataFrame) -> int | None:
    """The layer where Q is furthest below A in paper mode, if any has both groups.

    Layers whose groups have few samples compete only where no layer has enough: the widest
    gap of a group of two is noise. Paper mode chooses, so that the strict number that is
    then reported was not picked for its size.
    """
    q, a = (
        {int(row["layer"]): row for row in records(where(table, mode="paper", pathway=pathway))}
        for pathway in ("Q", "A")
    )
    gap = {layer: q[layer]["delta_p"] - a[layer]["delta_p"] for layer in sorted(q.keys() & a)}
    gap = {layer: value for layer, value in gap.items() if math.isfinite(value)}
    enough = [layer for layer in gap if min(q[layer]["n"], a[layer]["n"]) >= FEW]
    return min(enough or gap, key=lambda layer: gap[layer], default=None)


def collapse(run: RunView, dataset: str, layer: int, *, mode: Mode = "paper") -> Collapse:
    """Share of samples that flip, by predicted class."""
    rows = where(run.pathways, dataset=dataset, layer=layer, mode=mode)
    right, wrong = where(rows, prediction=0), where(rows, prediction=1)

    def share(part: pd.DataFrame) -> float:
        return len(where(part, pathway="Q")) / len(part) if len(part) else math.nan

    return Collapse(right=share(right), wrong=share(wrong), n_right=len(right), n_wrong=len(wrong))


def _effect(table: pd.DataFrame, layer: int, mode: Mode, pathway: str) -> Estimate:
    return _at(where(table, mode=mode, pathway=pathway), layer, "delta_p")


def _at(rows: pd.DataFrame, layer: int, column: str, *, n: str = "n") -> Estimate:
    """The column's value and interval at a layer, NaN where the table has none."""
    found = records(where(rows, layer=layer))
    if not found:
        return NOTHING
    row = found[0]
    low, high = (float(row.get(f"{column}_{end}", math.nan)) for end in ("low", "high"))
    return Estimate(float(row[column]), low, high, int(row[n]))


def _most(table: pd.DataFrame) -> tuple[int, int]:
    sizes = {
        pathway: values(where(table, mode="paper", pathway=pathway), "n").tolist()
        for pathway in ("Q", "A")
    }
    return max(map(int, sizes["Q"]), default=0), max(map(int, sizes["A"]), default=0)
