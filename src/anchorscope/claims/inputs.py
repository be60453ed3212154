"""The inputs of the claims: the tables of a run, and its ΔP curves with bootstrap draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.pathways.effects import Delta, delta_p
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.table_columns import EVIDENCE
from anchorscope.stats.drawing import drawn_sums

FEWEST = 5  # samples a group must have for a layer's mean to count in a curve


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
