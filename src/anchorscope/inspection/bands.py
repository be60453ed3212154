"""What the run says of its own answers: bands of Q and A, the layer to read, and calibration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.special import expit

from anchorscope.errors import unknown
from anchorscope.pathways.grouping import ROLES
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import Estimate, Mode
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.stats.intervals import rate

LEAST = 10  # samples of a group below which there is no band
NEAR = 0.1  # how far from a probability others count as given the same


@dataclass(frozen=True)
class RunAnswers:
    """The answers of one dataset of a run, as a background for one more question."""

    run: RunView
    dataset: str

    @cached_property
    def probes(self) -> ProbeSet:
        return ProbeSet.load(self.run.path / "probes" / self.dataset)

    @cached_property
    def finding(self) -> dict[str, Any]:
        """The run's finding on this dataset, as in findings.csv; empty where it has none."""
        rows = (
            records(where(self.run.findings, dataset=self.dataset)) if self.run.has_strict else []
        )
        return rows[0] if rows else {}

    @cached_property
    def layer(self) -> int:
        """The layer of the finding; without one, the layer with the most accurate probe."""
        layer = self.finding.get("layer", np.nan)
        if np.isfinite(layer):
            return int(layer)
        table = where(self.run.probes, dataset=self.dataset)
        return int(table["layer"].to_numpy()[values(table, "auroc").to_numpy(float).argmax()])

    @cached_property
    def agreement(self) -> float:
        """Cohen's κ of two independent probes on the pathway at that layer; NaN: not known."""
        table = (
            self.run.strict if self.run.has_strict else pd.DataFrame(columns=["dataset", "layer"])
        )
        rows = records(where(table, dataset=self.dataset, layer=self.layer))
        return float(rows[0]["kappa"]) if rows else np.nan

    @cached_property
    def folds(self) -> dict[str, int]:
        """The fold of each question that a probe was trained with, by id."""
        samples = where(self.run.samples, dataset=self.dataset)
        if "fold" not in samples.columns:
            return {}
        rows = [row for row in records(samples) if not pd.isna(row["fold"])]
        return {str(row["id"]): int(row["fold"]) for row in rows}

    def logits(self, states: np.ndarray, fold: int | None) -> np.ndarray:
        """Every probe's logit of states [row, layer, width]: [probe, row, layer].

        A question of the run is read by the probes that held its fold out, another one (fold
        None) by the mean of all folds' probes.
        """
        if fold is None:
            return self.probes.mean_logits(states)
        return self.probes.logits(states, np.full(len(states), fold))

    @cached_property
    def _rows(self) -> pd.DataFrame:
        return where(self.run.pathways, dataset=self.dataset)

    def bands(self, mode: Mode, predicted: np.ndarray) -> dict[str, np.ndarray]:
        """The middle half of P(wrong) under the knockout, [layer, 2], of Q and of A.

        Among answers of the same predicted class as `predicted` [layer]; NaN below ten of them.
        """
        out = {group: np.full((len(predicted), 2), np.nan) for group in ("Q", "A")}
        for (of, layer, class_, group), middle in self._middles.items():
            if of == mode and class_ == predicted[layer - 1]:
                out[group][layer - 1] = middle
        return out

    @cached_property
    def _middles(self) -> dict[tuple[str, int, int, str], np.ndarray]:
        """The quartiles of P(wrong) under the knockout, by mode, layer, class and pathway."""
        middles = {}
        key = ["mode", "layer", "prediction", "pathway"]
        for names, of in self._rows.groupby(key, observed=True):
            mode, layer, class_, group = cast(tuple, names)
            logits = of["logit_knockout"].dropna()
            if len(logits) >= LEAST:
                quartiles = np.quantile(expit(logits), (0.25, 0.75))
                middles[str(mode), int(layer), int(class_), str(group)] = quartiles
        return middles

    def share_wrong(self, mode: Mode, probability: float) -> Estimate:
        """The share of wrong answers among those that the layer's probe gave about as much."""
        rows = where(self._rows, mode=mode, layer=self.layer)
        near = np.abs(expit(rows["logit_clean"].to_numpy(float)) - probability) <= NEAR
        return rate(rows["z"].to_numpy(float)[near])

    def effect_probe(self, mode: Mode) -> int:
        """The place of the mode's probe among the probes."""
        return self.probes.probes.index(ROLES[mode].effect)

    def group_probe(self, mode: Mode) -> int:
        """The place of the probe that names the pathway."""
        return self.probes.probes.index(ROLES[mode].group)


def answers_of(run: RunView, dataset: str | None) -> RunAnswers:
    """The answers of a dataset of the run; its first one where none is named."""
    name = dataset or run.datasets[0]
    if name not in run.datasets:
        raise unknown("dataset of the run", name, run.datasets)
    return RunAnswers(run, name)
