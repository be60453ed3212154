"""What claims are measured on, a claim's number in each mode, its region, and the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from scipy.special import ndtr

from anchorscope.pathways.effects import Delta, delta_p
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.run_folder.table_columns import EVIDENCE
from anchorscope.stats.drawing import drawn_sums
from anchorscope.stats.intervals import ALPHA, Z, percentile_interval

FEWEST = 5  # samples a group must have for a layer's mean to count in a curve
Decision = Literal["holds", "fails", "undecided", "not shown", "not measured"]


# --- The tables of a run, and its ΔP curves with bootstrap draws ---


@dataclass(frozen=True, kw_only=True)
class Curves:
    """ΔP of Q and A by layer [layer], and in each bootstrap resample [resample, layer]."""

    q: np.ndarray
    a: np.ndarray
    drawn_q: np.ndarray
    drawn_a: np.ndarray


@dataclass(frozen=True)
class ClaimInputs:
    """The tables of one run that claims are decided from."""

    model: str
    size: float  # grows with the model: blocks times width squared
    titles: Mapping[str, str]  # dataset -> title
    pathways: pd.DataFrame
    strict: pd.DataFrame
    findings: pd.DataFrame
    popularity: Mapping[str, float]  # question id -> popularity, where it is known
    unit: Delta = "points"
    seed: int = 0
    resamples: int = 500
    evidence: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # patching, boundary, ...
    entity: Mapping[str, str] = field(default_factory=dict)  # by question id; one without: its own

    @cached_property
    def curves(self) -> dict[tuple[str, Mode], Curves]:
        """The curves of every dataset and mode."""
        return {(name, mode): self._curves(name, mode) for name in self.titles for mode in MODES}

    def finding_of(self, dataset: str) -> dict[str, Any]:
        """A dataset's row of findings.csv."""
        rows = self.findings[self.findings["dataset"] == dataset]
        return {str(key): value for key, value in rows.iloc[0].items()}

    def layer_of(self, dataset: str) -> dict[str, Any]:
        """A dataset's row of strict.csv at the chosen layer."""
        layer = self.finding_of(dataset)["layer"]
        at = (self.strict["dataset"] == dataset) & (self.strict["layer"] == layer)
        return {str(key): value for key, value in self.strict[at].iloc[0].items()}

    def evidence_of(self, name: str, dataset: str) -> pd.DataFrame:
        """A dataset's rows of a table of evidence; empty without the table."""
        table = self.evidence.get(name)
        if table is None:
            return pd.DataFrame()
        return cast(pd.DataFrame, table.loc[table["dataset"] == dataset])

    def evidence_at(self, name: str, dataset: str) -> pd.DataFrame:
        """A dataset's rows of a table of evidence at the chosen layer."""
        table = self.evidence_of(name, dataset)
        if "layer" not in table:
            return pd.DataFrame()
        layer = self.finding_of(dataset)["layer"]
        return cast(pd.DataFrame, table.loc[table["layer"] == layer])

    def samples(self, dataset: str, mode: Mode) -> pd.DataFrame:
        """A dataset's rows of pathways.parquet at the chosen layer that have a pathway."""
        rows = self._rows[dataset, mode]
        layer = self.finding_of(dataset)["layer"]
        return cast(pd.DataFrame, rows.loc[(rows["layer"] == layer) & rows["pathway"].notna()])

    def entities(self, ids: Iterable[str]) -> np.ndarray:
        """The entity of each of these questions, in their order: what a bootstrap draws."""
        return np.array([self.entity.get(id, id) for id in map(str, ids)])

    @cached_property
    def _rows(self) -> dict[Any, pd.DataFrame]:
        """The rows of each dataset and mode, grouped once, since there are many."""
        found: dict[Any, pd.DataFrame] = {}
        found.update(iter(self.pathways.groupby(["dataset", "mode"], sort=False)))
        none = self.pathways.iloc[:0]
        return {(name, mode): none for name in self.titles for mode in MODES} | found

    def _curves(self, dataset: str, mode: Mode) -> Curves:
        """Mean effects by layer, and in each resample; NaN where a group has too few samples."""
        rows = self._rows[dataset, mode]
        table = rows[["id", "layer", "logit_clean", "logit_knockout"]].assign(
            **{which: rows["pathway"] == which for which in ("Q", "A")}
        )
        wide = table.pivot(index="id", columns="layer")  # an error for a question twice at a layer
        clean, knockout = (wide[f"logit_{name}"].to_numpy() for name in ("clean", "knockout"))
        effect = np.nan_to_num(delta_p(clean, knockout, delta=self.unit))
        member = [(wide[which] == True).to_numpy() for which in ("Q", "A")]  # noqa: E712
        columns = np.hstack([*member, *(effect * part for part in member)])
        entity = self.entities(wide.index.tolist())
        drawn = drawn_sums(columns, seed=self.seed, resamples=self.resamples, entity=entity)
        counts, totals = np.split(np.vstack([columns.sum(axis=0), drawn]), 2, axis=1)
        means = np.where(counts >= FEWEST, totals / np.maximum(counts, 1), np.nan)
        q, a = np.split(means, 2, axis=1)
        return Curves(q=q[0], a=a[0], drawn_q=q[1:], drawn_a=a[1:])


def from_tables(
    info: Mapping[str, Any], tables: Mapping[str, pd.DataFrame], samples: pd.DataFrame
) -> ClaimInputs:
    """The inputs of a run's claims, from run.json, its tables by name, and its samples."""
    model, config = info["model"], info.get("config") or {}
    popular = samples.dropna(subset=["popularity"])
    named = samples[samples["entity"].astype(bool)] if "entity" in samples else samples.iloc[:0]
    titles = {str(d["name"]): str(d.get("title") or d["name"]) for d in info["datasets"]}
    datasets = set(tables["findings"]["dataset"])
    return ClaimInputs(
        model=str(model["name"]),
        size=float(model.get("blocks", 0)) * float(model.get("width", 0)) ** 2,
        titles={name: title for name, title in titles.items() if name in datasets},
        pathways=tables["pathways"],
        strict=tables["strict"],
        findings=tables["findings"],
        popularity=dict(zip(popular["id"], popular["popularity"].astype(float), strict=True)),
        unit="relative" if config.get("delta") == "relative" else "points",
        seed=int(config.get("seed", 0)),
        resamples=int(config.get("resamples", 500)),
        evidence={name: table for name, table in tables.items() if name in EVIDENCE},
        entity=dict(zip(named["id"], named["entity"], strict=True)) if "entity" in named else {},
    )


# --- Claims, their numbers and decisions ---


@dataclass(frozen=True)
class Region:
    """The values for which a claim holds, both ends included."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The number of one claim in one mode. Without a value it was not measured."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_holds: float = math.nan  # the chance of such a number if the claim were just false
    p_fails: float = math.nan  # if it were just true
    decided_elsewhere: Decision | None = None  # by more than one number
    otherwise: Decision = "undecided"  # where nothing is decided; a test can only fail to reject

    @property
    def p(self) -> float:
        """Twice the smaller p-value, since the claim may be decided either way."""
        return min(1.0, 2 * min(self.p_holds, self.p_fails))

    def decision(self, p: float) -> Decision:
        """The decision for a p-value that was corrected for the other claims of its family."""
        if self.decided_elsewhere is not None:
            return self.decided_elsewhere
        if math.isnan(self.value):
            return "not measured"
        if not p <= ALPHA:
            return self.otherwise
        return "holds" if self.p_holds < self.p_fails else "fails"


def from_draws(value: float, drawn: np.ndarray, region: Region) -> Measured:
    """Measure a statistic with its bootstrap draws [resample] against a region."""
    estimate = percentile_interval(value, drawn, len(drawn))
    if not np.isfinite(estimate.low):
        return Measured()
    return _measured(*estimate[:3], float(drawn[np.isfinite(drawn)].std()), region)


def from_estimate(estimate: Estimate, region: Region) -> Measured:
    """Measure an estimate with its interval against a region."""
    if not np.isfinite(estimate[:3]).all():
        return Measured()
    error = (estimate.high - estimate.low) / (2 * Z)
    return _measured(estimate.value, estimate.low, estimate.high, error, region)


def both(one: Measured, other: Measured) -> Measured:
    """Combine two numbers of a claim: the first, which holds only if the second holds too.

    It fails by its own number alone: an interval that is shown and allows the claim is no evidence
    against it, whatever the second number is.
    """
    if math.isnan(one.value) or math.isnan(other.value):
        return Measured()
    return replace(one, p_holds=max(one.p_holds, other.p_holds))


def _measured(value: float, low: float, high: float, error: float, region: Region) -> Measured:
    error = max(error, 1e-12)
    # Inside: both ends must be ruled out. Outside: one end must be crossed.
    beyond = [ndtr((region.low - value) / error), ndtr((value - region.high) / error)]
    within = [ndtr((value - region.low) / error), ndtr((region.high - value) / error)]
    p_holds, p_fails = float(max(beyond)), float(min(within))
    return Measured(value=value, low=low, high=high, p_holds=p_holds, p_fails=p_fails)


@dataclass(frozen=True)
class Claim:
    """A claim: how it is worded, and what measures it."""

    name: str
    statement: str | Callable[[ClaimInputs, str], str]
    # The number on a dataset (several: joined by commas) in a mode. None in paper mode: the run
    # has nothing to measure it by.
    measure: Callable[[ClaimInputs, str, Mode], Measured | None]
    source: str = "paper"  # or figure, or a reading of the figure
    primary: bool = False  # the question the run is for: it is outside Holm's family
    about_groups: bool = True  # about Q and A: strict mode then needs two pathways
    shares_number_of: str = ""  # a claim on the same number: the two count once in Holm's family


class ClaimRow(NamedTuple):
    """A claim with its numbers: one row of claims.csv."""

    claim: Claim
    statement: str
    model: str
    dataset: str
    paper: Measured
    strict: Measured


def decided(
    run: ClaimInputs,
    claims: Iterable[Claim],
    *,
    datasets: Sequence[str] | None = None,
    model: str | None = None,
) -> Iterator[ClaimRow]:
    """Yield a row for each claim on each dataset (default: all of the run) that can measure it."""
    for claim in claims:
        for dataset in run.titles if datasets is None else datasets:
            paper = claim.measure(run, dataset, "paper")
            if paper is not None:
                statement = claim.statement
                worded = statement if isinstance(statement, str) else statement(run, dataset)
                strict = claim.measure(run, dataset, "strict") or Measured()
                yield ClaimRow(claim, worded, model or run.model, dataset, paper, strict)
