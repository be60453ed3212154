"""The pathways of one dataset: its tables, and its finding.

The work is split into parts that any process can compute. A part reads the states it needs from the
run folder, a layer at a time, and nothing of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.config import Config, unit_of
from anchorscope.engine.interventions import CLEAN, KNOCKOUT, NEUTRAL
from anchorscope.pathways.band import best_layer, choose_band
from anchorscope.pathways.effects import (
    controls_table,
    layers_table,
    pathways_table,
    probes_table,
)
from anchorscope.pathways.finding import FEWEST, Finding, examine, find, findings_table
from anchorscope.pathways.fold_layers import (
    FoldBand,
    band_of_folds,
    read_fold_layer,
    same_gap,
    whole_gap,
)
from anchorscope.pathways.power import SHARES, WORLDS, deciding_power, power
from anchorscope.pathways.strict_tables import strict_row
from anchorscope.probes.folds import Labelled
from anchorscope.probes.probe_set import Readings
from anchorscope.run_folder.states import StateBank
from anchorscope.stats.intervals import Draws

_WORLDS_AT_ONCE = 5  # planted worlds of one part
Tables = dict[str, pd.DataFrame]
Spread = Callable[[str, Sequence[Callable[[], Any]]], list[Any]]  # a stage's parts to their results


@dataclass(frozen=True, kw_only=True)
class DatasetInputs:
    """One dataset, and the layers at which its finding is made, fixed on clean states."""

    model: str
    config: Config
    answers: Labelled
    readings: Readings  # by the run's own set of folds
    bank: StateBank

    @cached_property
    def layer(self) -> int:
        """The layer k, from 1, whose clean probe has the highest AUROC."""
        return best_layer(self.readings)

    @cached_property
    def band(self) -> tuple[int, ...]:
        """The layers whose readings are averaged."""
        return choose_band(self.readings, seed=self.config.seed)

    @property
    def draws(self) -> Draws:
        return Draws(seed=self.config.seed, resamples=self.config.resamples)


def pathway_tables(inputs: DatasetInputs, spread: Spread) -> Tables:
    """The tables of ΔP, probes, controls and strict mode, and the finding."""
    finding = whole_finding(inputs, spread, worlds=WORLDS)
    config, readings = inputs.config, inputs.readings
    names = {"model": inputs.model, "dataset": inputs.answers.dataset}
    of_layer = partial(
        strict_row, readings, inputs.bank, config=config, covariates=inputs.answers.covariates
    )
    parts = [
        partial(_group_tables, inputs),
        partial(probes_table, readings, **names, seed=config.seed, resamples=config.resamples),
        partial(controls_table, readings, **names, delta=config.delta),
        *(partial(of_layer, layer) for layer in readings.layer_numbers),
    ]
    groups, probes, controls, *rows = spread("pathways", parts)
    return {
        **groups,
        "probes": probes,
        "controls": controls,
        "strict": pd.DataFrame([{**names, **row} for row in rows]),
        "findings": findings_table(finding, **names, layer=inputs.layer),
    }


def in_turn(_: str, parts: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of a stage's parts, computed one after the other in this process."""
    return [part() for part in parts]


def whole_finding(
    inputs: DatasetInputs, spread: Spread = in_turn, *, worlds: int | None = None
) -> Finding:
    """The finding of a dataset, over all sets of folds.

    `worlds` are planted for each share. None plants only as many as decide the finding: its power
    is then no estimate.
    """
    config, answers, unit = inputs.config, inputs.answers, unit_of(inputs.config.delta)
    sets = _sets_of_folds(inputs, spread)
    bands = [folds.band for folds in sets]
    enough = bands[0].n >= FEWEST
    examinations = [
        partial(examine, band, replace(inputs.draws, seed=config.seed + number), unit=unit)
        for number, band in enumerate(bands)
    ]
    planted = [
        (name, range(start, min(start + _WORLDS_AT_ONCE, worlds or 0)))
        for name in SHARES
        for start in range(0, worlds or 0, _WORLDS_AT_ONCE)
        if enough
    ]
    plantings = [
        partial(power, bands, share=SHARES[name], worlds=some, seed=config.seed)
        for name, some in planted
    ]
    results = spread("findings", [*examinations, *plantings])
    examined, found = results[: len(bands)], results[len(bands) :]
    hits: dict[str, list[bool]] = {name: [] for name in SHARES}
    for (name, _), some in zip(planted, found, strict=True):
        hits[name] += some
    if worlds is None and enough:
        names = {find(examined, dict.fromkeys(SHARES, chance)).name for chance in (0.0, 1.0)}
        if len(names) > 1:
            hits["half"] = deciding_power(bands, seed=config.seed)
    circular = [gap for band in bands if np.isfinite(gap := same_gap(band, unit=unit))]
    return replace(
        find(examined, {n: float(np.mean(own)) if own else np.nan for n, own in hits.items()}),
        gap=whole_gap(sets, inputs.readings, answers, seed=config.seed, unit=unit),
        same_gap=float(np.mean(circular)) if circular else np.nan,
    )


def _sets_of_folds(inputs: DatasetInputs, spread: Spread) -> list[FoldBand]:
    """The band's readings by each set of folds whose probes have enough of both classes."""
    config, answers, band = inputs.config, inputs.answers, inputs.band
    own = inputs.readings
    read = partial(read_fold_layer, answers, inputs.bank, config, passes=tuple(own.logits), own=own)
    seeds = range(config.fold_seeds)
    results = spread("readings", [partial(read, k, seed=seed) for seed in seeds for k in band])
    sets = (
        band_of_folds(answers, config, band, results[seed * len(band) : (seed + 1) * len(band)])
        for seed in seeds
    )
    return [folds for folds in sets if folds is not None]


def _group_tables(inputs: DatasetInputs) -> Tables:
    """The tables of each sample's group by layer, of ΔP of the groups, and of the control's."""
    config, readings = inputs.config, inputs.readings

    def grouped(readings: Readings) -> tuple[pd.DataFrame, pd.DataFrame]:
        rows = pathways_table(readings, dataset=inputs.answers.dataset, grouping=config.grouping)
        layers = layers_table(
            rows,
            model=inputs.model,
            delta=config.delta,
            entity_by_id=readings.entity_by_id,
            seed=config.seed,
            resamples=config.resamples,
        )
        return rows, layers

    rows, layers = grouped(readings)
    tables: Tables = {"pathways": rows, "layers": layers}
    if NEUTRAL.name in readings.logits:
        # Grouped by the control's own flips, so that its curves compare with the knockout's.
        logits = {
            CLEAN.name: readings.logits[CLEAN.name],
            KNOCKOUT.name: readings.logits[NEUTRAL.name],
        }
        _, layers = grouped(replace(readings, logits=logits))
        tables["control_layers"] = layers.assign(intervention=NEUTRAL.name)
    return tables
