"""The analysis of one dataset, in parts that any process can compute.

A part reads the states it needs from the run folder, a layer at a time, and nothing of the model.
The finding needs two rounds: first the readings of every set of folds, then what they show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from anchorscope.config import Config, unit_of
from anchorscope.engine.passes import CLEAN, KNOCKOUT, NEUTRAL
from anchorscope.errors import UserError
from anchorscope.pathways.band import Band, best_layer, choose_band, read_band, side_overlap
from anchorscope.pathways.finding import FEWEST, Examined, Finding, examine, find
from anchorscope.pathways.gap import (
    entity_parts,
    gap_with_interval,
    gaps_of_other_bands,
    layer_influence,
    redrawn_gaps,
    same_gap,
    strict_gap,
)
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.power import SHARES, WORLDS, deciding_power, power
from anchorscope.pathways.refit import refit
from anchorscope.pathways.strict_tables import Row, StrictDraws, layer_row
from anchorscope.pathways.tables import controls_table, layers_table, probes_table
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.states import StateBank

_WORLDS_AT_ONCE = 5  # planted worlds of one part
# What the finding reads by every set of folds, where a run has it.
READ = ("clean", "knockout", "neutral", "content", "question", "retest", "retest-knockout")
Tables = dict[str, pd.DataFrame]
Part = Callable[[], Any]
Results = Mapping[tuple[str, Any], Any]  # by kind of part and its number


@dataclass(frozen=True, kw_only=True)
class DatasetInputs:
    """One dataset, and the layers at which its finding is made."""

    model: str
    config: Config
    answers: Labelled
    readings: Readings  # by the run's own set of folds
    bank: StateBank
    layer: int  # k, from 1: the one whose clean probe reads best
    band: tuple[int, ...]  # the layers whose readings are averaged


class OwnFolds(NamedTuple):
    """The run's own set of folds: the band's readings, and gaps of entities drawn again."""

    band: Band
    redrawn: np.ndarray  # [draw]


def asked_of(
    *, model: str, config: Config, answers: Labelled, readings: Readings, bank: StateBank
) -> DatasetInputs:
    """A dataset with its band of layers, fixed on clean states."""
    return DatasetInputs(
        model=model,
        config=config,
        answers=answers,
        readings=readings,
        bank=bank,
        layer=best_layer(readings),
        band=choose_band(readings, seed=config.seed),
    )


def draws_of(config: Config) -> StrictDraws:
    """How many draws a config asks for, and in which unit."""
    return StrictDraws(seed=config.seed, resamples=config.resamples, points=unit_of(config.delta))


def parts_of(inputs: DatasetInputs) -> dict[tuple[str, Any], Part]:
    """The parts of a dataset by kind and number, those that take longest first."""
    layers = sorted(inputs.readings.layer_numbers, key=lambda layer: layer != inputs.layer)
    return {
        **_other_folds(inputs),
        ("band", 0): partial(_own_folds, inputs),
        ("bands", ""): partial(_other_bands, inputs),
        **{("mode", mode): partial(_tables_of_mode, inputs, mode) for mode in MODES},
        **{("layer", k): partial(_layer, inputs, k) for k in layers},
        ("tables", ""): partial(_tables, inputs),
    }  # fmt: skip


def second_parts(
    inputs: DatasetInputs, results: Results, *, worlds: int = WORLDS
) -> dict[tuple[str, Any], Part]:
    """The parts that need the readings of all sets of folds.

    `worlds` are planted for each share to learn the power; without any it stays unknown.
    """
    bands, config = bands_of(inputs, results), inputs.config
    draws = [replace(draws_of(config), seed=config.seed + seed) for seed in range(len(bands))]
    parts: dict[tuple[str, Any], Part] = {
        ("examined", seed): partial(examine, band, draws[seed]) for seed, band in enumerate(bands)
    }
    if bands[0].n >= FEWEST:
        for name, share in SHARES.items():
            for start in range(0, worlds, _WORLDS_AT_ONCE):
                some = range(start, min(start + _WORLDS_AT_ONCE, worlds))
                parts["power", (name, start)] = partial(
                    power, bands, share=share, worlds=some, seed=config.seed
                )
    return parts


def bands_of(inputs: DatasetInputs, results: Results) -> list[Band]:
    """The readings of every set of folds that left its probes enough of both classes."""
    others = [results["band", seed] for seed in range(1, inputs.config.fold_seeds)]
    return [results["band", 0].band, *(band for band in others if band is not None)]


def finding_from(inputs: DatasetInputs, results: Results) -> Finding:
    """The finding of a dataset from the results of both rounds."""
    bands, unit = bands_of(inputs, results), unit_of(inputs.config.delta)
    examined: list[Examined] = [results["examined", seed] for seed in range(len(bands))]
    chances = dict.fromkeys(SHARES, np.nan)
    for name in SHARES:
        found = [
            world
            for (kind, key), worlds in results.items()
            if kind == "power" and key[0] == name
            for world in worlds
        ]
        if found:
            chances[name] = sum(found) / len(found)
    return replace(
        find(examined, chances),
        gap=gap_with_interval(
            [strict_gap(band, unit=unit) for band in bands],
            results["band", 0].redrawn,
            results["bands", ""],
        ),
        same_gap=gap_with_interval([same_gap(band, unit=unit) for band in bands]).value,
    )


def whole_finding(inputs: DatasetInputs, *, worlds: int | None = None) -> Finding:
    """The finding of a dataset in this process: what `parts_of` and `second_parts` spread.

    `worlds` are planted for each share. None plants only as many as decide the finding: its power
    is then no estimate.
    """
    results: dict[tuple[str, Any], Any] = {("band", 0): _own_folds(inputs)}
    results |= {key: part() for key, part in _other_folds(inputs).items()}
    results["bands", ""] = _other_bands(inputs)
    second = second_parts(inputs, results, worlds=worlds or 0)
    results |= {key: part() for key, part in second.items()}
    bands = bands_of(inputs, results)
    if worlds is None and bands[0].n >= FEWEST:
        examined = [results["examined", seed] for seed in range(len(bands))]
        names = {find(examined, dict.fromkeys(SHARES, share)).name for share in (0.0, 1.0)}
        if len(names) > 1:
            results["power", ("half", 0)] = deciding_power(bands, seed=inputs.config.seed)
    return finding_from(inputs, results)


def cross_fit_answers(
    states: Mapping[str, np.ndarray],
    answers: Labelled,
    config: Config,
    *,
    fold: np.ndarray | None = None,
) -> tuple[Readings, ProbeSet]:
    """Readings of a dataset's states [question, layer, width] by pass, and the probes.

    `fold` [question] is the answers' own unless another one is given.
    """
    readings, probes = cross_fit(
        states,
        ids=answers.ids,
        z=answers.z,
        fold=answers.fold if fold is None else fold,
        entity=answers.entities,
        dataset=answers.dataset,
        C=config.C,
        balance=config.balance,
        workers=1,
    )
    return replace(readings, entity=answers.covariates.entity), probes


def band_of_folds(
    answers: Labelled,
    bank: StateBank,
    config: Config,
    band: Sequence[int],
    *,
    passes: Collection[str],
    seed: int,
) -> Band | None:
    """The readings over layers `band` by set `seed` of folds, of those `passes` a finding reads.

    None where another set than the first leaves a probe too few answers of a class.
    """
    fold = entity_folds(answers.entities, folds=config.folds, seed=config.seed + seed)
    states = {
        name: np.stack([bank.layer(name, layer) for layer in band], axis=1)
        for name in READ
        if name in passes
    }
    try:
        readings, probes = cross_fit_answers(states, answers, config, fold=fold)
    except UserError:
        if seed == 0:
            raise
        return None
    moved = [
        _squared_move(states[CLEAN.name][:, at], states[KNOCKOUT.name][:, at])
        for at in range(len(band))
    ]
    a, b = (probes.weights[probes.probes.index(side)] for side in ("a", "b"))
    places = range(1, len(band) + 1)
    return replace(
        read_band(readings, places, covariates=answers.covariates),
        overlap=side_overlap(a, b, moved),
        layers=tuple(band),
    )


def _other_folds(inputs: DatasetInputs) -> dict[tuple[str, Any], Part]:
    """The parts that read the band by the sets of folds behind the first."""
    read = partial(band_of_folds, inputs.answers, inputs.bank, inputs.config, inputs.band)
    passes = tuple(inputs.readings.logits)
    seeds = range(1, inputs.config.fold_seeds)
    return {("band", seed): partial(read, passes=passes, seed=seed) for seed in seeds}


def _own_folds(inputs: DatasetInputs) -> OwnFolds:
    """The band as the run's own probes read it, and gaps of entities drawn again."""
    config, answers, readings = inputs.config, inputs.answers, inputs.readings
    part = entity_parts(answers.entities, seed=config.seed)
    sides = [readings.probes.index(side) for side in ("a", "b")]
    moved, directions, lengths = 0.0, [], []
    for layer in inputs.band:
        clean, cut = (inputs.bank.layer(name, layer) for name in (CLEAN.name, KNOCKOUT.name))
        found = layer_influence(
            clean,
            cut,
            readings.logits[CLEAN.name][sides, :, layer - 1],
            z=answers.z,
            fold=answers.fold,
            part=part,
            C=config.C,
            balance=config.balance,
        )
        moved = moved + found.moved / len(inputs.band)
        directions.append(found.direction)
        lengths.append(_squared_move(clean, cut))
    a, b = np.stack(directions, axis=2)
    band = read_band(readings, inputs.band, covariates=answers.covariates)
    band = replace(band, overlap=side_overlap(a, b, lengths))
    read = np.isfinite(np.asarray(moved)).all(axis=(0, 1, 3))
    redrawn = redrawn_gaps(
        band,
        np.asarray(moved)[:, :, read],
        part[read],
        seed=config.seed,
        unit=unit_of(config.delta),
    )
    return OwnFolds(band, redrawn)


def _squared_move(clean: np.ndarray, cut: np.ndarray) -> float:
    """The mean squared distance between states [question, width]; 1 where no sample was cut."""
    lengths = np.square(cut.astype(np.float64) - clean).sum(axis=1)
    read = np.isfinite(lengths)
    return float(lengths[read].mean()) if read.any() else 1.0


def _other_bands(inputs: DatasetInputs) -> np.ndarray:
    return gaps_of_other_bands(
        inputs.readings,
        covariates=inputs.answers.covariates,
        seed=inputs.config.seed,
        unit=unit_of(inputs.config.delta),
    )


def _layer(inputs: DatasetInputs, layer: int) -> Row:
    """The row of one layer in strict.csv."""
    config, answers, readings = inputs.config, inputs.answers, inputs.readings
    read = refit(
        inputs.bank.layer(CLEAN.name, layer),
        inputs.bank.layer(KNOCKOUT.name, layer),
        readings.at(layer, "paper", KNOCKOUT.name),
        z=answers.z,
        fold=answers.fold,
        C=config.C,
        balance=config.balance,
        seed=config.seed,
        resamples=config.resamples,
        entity=answers.covariates.entity,
    )
    draws = draws_of(config)
    return layer_row(readings, layer, draws, covariates=answers.covariates, refit=read)


def layers_of(inputs: DatasetInputs, results: Results) -> list[Row]:
    """The rows of all layers from the results of a dataset's parts."""
    return [results["layer", layer] for layer in inputs.readings.layer_numbers]


def _tables_of_mode(inputs: DatasetInputs, mode: Mode) -> Tables:
    rows, layers = _grouped(inputs, inputs.readings, mode)
    tables = {"pathways": rows, "layers": layers}
    if NEUTRAL.name in inputs.readings.logits:
        # Grouped by the control's own flips, so that its curves may be laid beside the knockout's.
        logits = {
            name: inputs.readings.logits[as_if]
            for name, as_if in ((CLEAN.name, CLEAN.name), (KNOCKOUT.name, NEUTRAL.name))
        }
        _, control = _grouped(inputs, replace(inputs.readings, logits=logits), mode)
        tables["control_layers"] = control.assign(intervention=NEUTRAL.name)
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


def _tables(inputs: DatasetInputs) -> Tables:
    names = {"model": inputs.model, "dataset": inputs.answers.dataset}
    return {
        "probes": probes_table(
            inputs.readings, **names, seed=inputs.config.seed, resamples=inputs.config.resamples
        ),
        "controls": controls_table(inputs.readings, **names, delta=inputs.config.delta),
    }
