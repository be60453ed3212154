"""The pathways of one dataset: its tables, and its finding.

The work is split into parts that any process can compute. A part reads the states it needs from the
run folder, a layer at a time, and nothing of the model. A finding needs two rounds: first the
readings of every set of folds, then what they show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.config import Config, unit_of
from anchorscope.engine.passes import CLEAN, KNOCKOUT, NEUTRAL
from anchorscope.pathways.band import best_layer, choose_band, drawn_bands
from anchorscope.pathways.effects import (
    controls_table,
    layers_table,
    pathways_table,
    probes_table,
)
from anchorscope.pathways.finding import FEWEST, Finding, examine, find, findings_table
from anchorscope.pathways.fold_layers import (
    FoldBand,
    FoldLayer,
    band_of_folds,
    entity_parts,
    own_fold_layer,
    read_fold_layer,
)
from anchorscope.pathways.gap import (
    drawn_parts,
    gap_of_bands,
    gap_with_interval,
    redrawn_gaps,
    same_gap,
    strict_gap,
)
from anchorscope.pathways.power import SHARES, WORLDS, deciding_power, power
from anchorscope.pathways.strict_tables import Row, strict_row
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.states import StateBank
from anchorscope.stats.intervals import Draws

_WORLDS_AT_ONCE = 5  # planted worlds of one part
Tables = dict[str, pd.DataFrame]
Part = Callable[[], Any]
Spread = Callable[[str, Sequence[Part]], list[Any]]  # runs the parts of a stage, in any process


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
        """The layer k, from 1, whose clean probe reads best."""
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
    folds = _fold_parts(inputs)  # they take longest
    modes = [partial(_mode_tables, inputs, mode) for mode in MODES]
    layers = [partial(_layer_row, inputs, layer) for layer in inputs.readings.layer_numbers]
    parts = [*folds, *modes, *layers, partial(_plain_tables, inputs)]
    results = iter(spread("pathways", parts))
    read = _folds(inputs, list(islice(results, len(folds))))
    finding = _finding(inputs, read, spread, worlds=WORLDS)
    by_mode = list(islice(results, len(modes)))
    names = {"model": inputs.model, "dataset": inputs.answers.dataset}
    rows = [{**names, **row} for row in islice(results, len(layers))]
    return {
        **{n: pd.concat([tables[n] for tables in by_mode], ignore_index=True) for n in by_mode[0]},
        **next(results),
        "strict": pd.DataFrame(rows),
        "findings": findings_table(finding, **names, layer=inputs.layer),
    }


def whole_finding(inputs: DatasetInputs, *, worlds: int | None = None) -> Finding:
    """The finding of a dataset, computed in this process.

    `worlds` are planted for each share. None plants only as many as decide the finding: its power
    is then no estimate.
    """
    folds = _folds(inputs, [part() for part in _fold_parts(inputs)])
    return _finding(inputs, folds, lambda _, parts: [part() for part in parts], worlds=worlds)


def _fold_parts(inputs: DatasetInputs) -> list[Part]:
    """Parts that read each layer of the band by every set of folds, the run's own set first."""
    config, answers, bank, readings = inputs.config, inputs.answers, inputs.bank, inputs.readings
    own = partial(own_fold_layer, answers, bank, config, readings)
    read = partial(read_fold_layer, answers, bank, config, passes=tuple(readings.logits))
    others = [
        partial(read, layer, seed=seed)
        for seed in range(1, config.fold_seeds)
        for layer in inputs.band
    ]
    return [*(partial(own, layer) for layer in inputs.band), *others]


def _folds(inputs: DatasetInputs, read: Sequence[FoldLayer | None]) -> list[FoldBand]:
    """The sets of folds that left their probes enough of both classes, from `_fold_parts`."""
    each = len(inputs.band)
    sets = (
        band_of_folds(inputs.answers, inputs.config, inputs.band, read[at : at + each])
        for at in range(0, len(read), each)
    )
    return [folds for folds in sets if folds is not None]


def _finding(
    inputs: DatasetInputs, sets: Sequence[FoldBand], spread: Spread, *, worlds: int | None
) -> Finding:
    """The finding from the readings of all sets of folds; `worlds` as for `whole_finding`."""
    config, unit = inputs.config, unit_of(inputs.config.delta)
    bands = [folds.band for folds in sets]
    enough = bands[0].n >= FEWEST
    examinations = [
        partial(examine, band, replace(inputs.draws, seed=config.seed + number))
        for number, band in enumerate(bands)
    ]
    plantings = [
        (name, range(start, min(start + _WORLDS_AT_ONCE, worlds or 0)))
        for name in SHARES
        for start in range(0, worlds or 0, _WORLDS_AT_ONCE)
        if enough
    ]
    planted = [
        partial(power, bands, share=SHARES[name], worlds=some, seed=config.seed)
        for name, some in plantings
    ]
    results = spread("findings", [*examinations, *planted])
    examined = results[: len(bands)]
    hits: dict[str, list[bool]] = {name: [] for name in SHARES}
    for (name, _), found in zip(plantings, results[len(bands) :], strict=True):
        hits[name] += found
    if worlds is None and enough:
        names = {find(examined, dict.fromkeys(SHARES, chance)).name for chance in (0.0, 1.0)}
        if len(names) > 1:
            hits["half"] = deciding_power(bands, seed=config.seed)
    chances = {name: sum(found) / len(found) if found else np.nan for name, found in hits.items()}
    part = entity_parts(inputs.answers.entities, seed=config.seed)
    times = drawn_parts(int(part.max()) + 1, seed=config.seed)
    drawn = drawn_bands(inputs.readings, part, times, seed=config.seed)
    by_band = gap_of_bands(
        inputs.readings, drawn, covariates=inputs.answers.covariates, unit=unit
    ) - strict_gap(bands[0], unit=unit)
    circular = [same_gap(band, unit=unit) for band in bands]
    return replace(
        find(examined, chances),
        gap=gap_with_interval(
            [strict_gap(band, unit=unit) for band in bands],
            [redrawn_gaps(folds, times, unit=unit) for folds in sets],
            times,
            by_band=by_band,
        ),
        same_gap=float(np.nanmean(circular)) if np.isfinite(circular).any() else np.nan,
    )


def _layer_row(inputs: DatasetInputs, layer: int) -> Row:
    """The row of one layer in strict.csv."""
    clean, knocked = (inputs.bank.layer(name, layer) for name in (CLEAN.name, KNOCKOUT.name))
    return strict_row(
        inputs.readings,
        (clean, knocked),
        layer,
        config=inputs.config,
        covariates=inputs.answers.covariates,
    )


def _mode_tables(inputs: DatasetInputs, mode: Mode) -> Tables:
    """The group of every sample by layer, ΔP of the groups, and that of the neutral control's."""
    rows, layers = _grouped(inputs, inputs.readings, mode)
    tables = {"pathways": rows, "layers": layers}
    logits = inputs.readings.logits
    if NEUTRAL.name in logits:
        # Grouped by the control's own flips, so that its curves may be laid beside the knockout's.
        control = {CLEAN.name: logits[CLEAN.name], KNOCKOUT.name: logits[NEUTRAL.name]}
        _, layers = _grouped(inputs, replace(inputs.readings, logits=control), mode)
        tables["control_layers"] = layers.assign(intervention=NEUTRAL.name)
    return tables


def _grouped(
    inputs: DatasetInputs, readings: Readings, mode: Mode
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The group of every sample by layer, and ΔP of the groups."""
    config = inputs.config
    rows = pathways_table(
        readings, dataset=inputs.answers.dataset, modes=(mode,), grouping=config.grouping
    )
    layers = layers_table(
        rows,
        model=inputs.model,
        delta=config.delta,
        entity_by_id=readings.entity_by_id,
        seed=config.seed,
        resamples=config.resamples,
    )
    return rows, layers


def _plain_tables(inputs: DatasetInputs) -> Tables:
    """How well the probes read each layer, and every control's flips and ΔP."""
    names = {"model": inputs.model, "dataset": inputs.answers.dataset}
    draws = inputs.draws
    return {
        "probes": probes_table(
            inputs.readings, **names, seed=draws.seed, resamples=draws.resamples
        ),
        "controls": controls_table(inputs.readings, **names, delta=inputs.config.delta),
    }
