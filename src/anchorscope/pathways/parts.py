"""What is asked of one dataset, in parts that any process can compute.

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
    gap_with_interval,
    gaps_of_other_bands,
    redrawn_gaps,
    same_gap,
    strict_gap,
)
from anchorscope.pathways.group_adds import Adds, group_adds
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.power import SHARES, WORLDS, power
from anchorscope.pathways.refit import Refit, distances, has_state, refit, refit_request
from anchorscope.pathways.strict_layer import StrictDraws, StrictLayer, examine_layer
from anchorscope.pathways.strict_tables import LayerEvidence, answer_only_gaps
from anchorscope.pathways.tables import controls_table, layers_table, probes_table
from anchorscope.probes.at_once import There, fits_of_layers, of_layers
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.many_fits import Made, Request
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.run_folder.states import StateBank

_WORLDS_AT_ONCE = 5  # planted worlds of one part
# What the finding reads by every set of folds, where a run has it.
READ = ("clean", "knockout", "neutral", "content", "question", "retest", "retest-knockout")
Tables = dict[str, pd.DataFrame]
Part = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One dataset, and the layers at which its finding is made."""

    model: str
    config: Config
    answers: Labelled
    readings: Readings
    bank: StateBank
    layer: int  # k, from 1: the one whose clean probe reads best
    band: tuple[int, ...]  # the layers whose readings are averaged


class Refits(NamedTuple):
    """What a GPU makes of the knocked-out states of all layers at once, by layer; may be empty."""

    fits: Mapping[int, Made]
    away: Mapping[int, np.ndarray]  # distances from clean states


def refits_of(answers: Labelled, bank: StateBank, config: Config) -> Refits:
    """The refits of a dataset, for which no probe is needed: empty where no GPU makes them."""
    layers = range(1, bank.layers + 1)
    fits = fits_of_layers(partial(_refit_request, answers, bank, config), layers)
    return Refits(fits, of_layers(partial(_distances, answers, bank, config), layers))


def parts_of(of: Asked, refits: Refits) -> dict[tuple[str, Any], Part]:
    """The parts of a dataset by kind and number, those that take longest first."""
    layers = sorted(of.readings.layer_numbers, key=lambda layer: layer != of.layer)
    fits, away = refits
    return {
        **{("band", seed): partial(_band, of, seed) for seed in range(of.config.fold_seeds)},
        ("redrawn", ""): partial(_redrawn, of),
        ("bands", ""): partial(_other_bands, of),
        **{("mode", mode): partial(_tables_of_mode, of, mode) for mode in MODES},
        **{("refit", k): partial(_refit, of, k, fits.get(k), away.get(k)) for k in layers},
        **{("layer", layer): partial(_layer, of, layer) for layer in layers},
        ("tables", ""): partial(_tables, of),
    }


def second_parts(
    of: Asked, results: Mapping[tuple[str, Any], Any], *, worlds: int = WORLDS
) -> dict[tuple[str, Any], Part]:
    """What is asked once the readings of all sets of folds are there.

    `worlds` are planted for each share to learn the power; without any it stays unknown.
    """
    bands = bands_of(of, results)
    draws = [replace(draws_of(of.config), seed=of.config.seed + seed) for seed in range(len(bands))]
    parts: dict[tuple[str, Any], Part] = {
        ("examined", seed): partial(examine, band, draws[seed]) for seed, band in enumerate(bands)
    }
    if bands[0].n >= FEWEST:
        for name, share in SHARES.items():
            for start in range(0, worlds, _WORLDS_AT_ONCE):
                some = range(start, min(start + _WORLDS_AT_ONCE, worlds))
                parts["power", (name, start)] = partial(
                    power, bands, share=share, worlds=some, seed=of.config.seed
                )
    return parts


def bands_of(of: Asked, results: Mapping[tuple[str, Any], Any]) -> list[Band]:
    """The readings of every set of folds that left its probes enough of both classes."""
    found = [results["band", seed] for seed in range(of.config.fold_seeds)]
    return [band for band in found if band is not None]


def finding_from(of: Asked, results: Mapping[tuple[str, Any], Any]) -> Finding:
    """The finding of a dataset from the results of both rounds."""
    bands, unit = bands_of(of, results), unit_of(of.config.delta)
    examined: list[Examined] = [results["examined", seed] for seed in range(len(bands))]
    chances = dict.fromkeys(SHARES, np.nan)
    for name in SHARES:
        shown = [
            one
            for (kind, key), some in results.items()
            if kind == "power" and key[0] == name
            for one in some
        ]
        if shown:
            chances[name] = sum(shown) / len(shown)
    return replace(
        find(examined, chances),
        gap=gap_with_interval(
            [strict_gap(band, unit=unit) for band in bands],
            results["redrawn", ""],
            results["bands", ""],
        ),
        same_gap=gap_with_interval([same_gap(band, unit=unit) for band in bands]).value,
    )


def whole_finding(of: Asked, *, worlds: int = WORLDS) -> Finding:
    """The finding of a dataset in this process: what `parts_of` and `second_parts` spread."""
    results: dict[tuple[str, Any], Any] = {
        ("band", seed): _band(of, seed) for seed in range(of.config.fold_seeds)
    }
    results |= {("redrawn", ""): _redrawn(of), ("bands", ""): _other_bands(of)}
    results |= {key: part() for key, part in second_parts(of, results, worlds=worlds).items()}
    return finding_from(of, results)


def asked_of(
    *, model: str, config: Config, answers: Labelled, readings: Readings, bank: StateBank
) -> Asked:
    """A dataset with its band of layers, fixed on clean states."""
    return Asked(
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


def _band(of: Asked, seed: int) -> Band | None:
    """The readings over the band by one set of folds; None where these leave a probe too few."""
    try:
        return band_of_folds(
            of.answers, of.bank, of.config, of.band, passes=of.readings.logits, seed=seed
        )
    except UserError:
        if seed == 0:
            raise
        return None


def band_of_folds(
    answers: Labelled,
    bank: StateBank,
    config: Config,
    band: Sequence[int],
    *,
    passes: Collection[str],
    seed: int,
) -> Band:
    """The readings over layers `band` by set `seed` of folds, of those `passes` a finding reads."""
    fold = entity_folds(answers.entities, folds=config.folds, seed=config.seed + seed)
    states = {
        name: np.stack([bank.layer(name, layer) for layer in band], axis=1)
        for name in READ
        if name in passes
    }
    readings, probes = cross_fit(
        states,
        ids=answers.ids,
        z=answers.z,
        fold=fold,
        entity=answers.entities,
        C=config.C,
        balance=config.balance,
        workers=1,
    )
    places = range(1, len(band) + 1)
    away = states[KNOCKOUT.name].astype(np.float64) - states[CLEAN.name]
    read = np.isfinite(away).all(axis=(1, 2))
    lengths = np.square(away[read]).sum(axis=2)
    moved = lengths.mean(axis=0).tolist() if read.any() else [1.0] * len(band)
    return read_band(
        readings,
        places,
        covariates=answers.covariates,
        overlap=side_overlap(probes, places, moved),
        band=band,
    )


def _redrawn(of: Asked) -> np.ndarray:
    """Gaps of entities drawn anew, with probes that learnt from these."""
    config = of.config
    band = _band(of, 0)
    assert band is not None, "the first set of folds is the run's own"
    read = np.isfinite(of.readings.at(of.layer, "paper", KNOCKOUT.name))
    clean, cut = (
        [of.bank.layer(name, layer)[read] for layer in of.band]
        for name in (CLEAN.name, KNOCKOUT.name)
    )
    return redrawn_gaps(
        band, clean, cut, C=config.C, balance=config.balance, seed=config.seed,
        unit=unit_of(config.delta),
    )  # fmt: skip


def _other_bands(of: Asked) -> np.ndarray:
    return gaps_of_other_bands(
        of.readings,
        covariates=of.answers.covariates,
        seed=of.config.seed,
        unit=unit_of(of.config.delta),
    )


def _refit_request(
    answers: Labelled, bank: StateBank, config: Config, layer: int
) -> tuple[np.ndarray, Request | None]:
    states, z, fold = bank.layer(KNOCKOUT.name, layer), answers.z, answers.fold
    return refit_request(states, z=z, fold=fold, C=config.C, balance=config.balance)


def _distances(
    answers: Labelled, bank: StateBank, config: Config, there: There, layer: int
) -> np.ndarray:
    clean, knockout = (bank.layer(name, layer) for name in (CLEAN.name, KNOCKOUT.name))
    known = has_state(knockout)
    fold = answers.fold[known]
    return distances(there(clean[known]), there(knockout[known]), fold, seed=config.seed)


def _refit(of: Asked, layer: int, fits: Made | None, away: np.ndarray | None) -> Refit:
    config, answers = of.config, of.answers
    return refit(
        of.bank.layer(CLEAN.name, layer),
        of.bank.layer(KNOCKOUT.name, layer),
        of.readings.at(layer, "paper", KNOCKOUT.name),
        z=answers.z,
        fold=answers.fold,
        C=config.C,
        balance=config.balance,
        seed=config.seed,
        resamples=config.resamples,
        entity=answers.covariates.entity,
        fits=fits,
        away=away,
    )


def _layer(of: Asked, layer: int) -> tuple[StrictLayer, Adds, Mapping[Mode, Estimate]]:
    """What strict mode asks of a layer's readings; its refit is a part of its own."""
    readings, draws, covariates = of.readings, draws_of(of.config), of.answers.covariates
    return (
        examine_layer(readings, layer, draws, covariates=covariates),
        group_adds(readings, layer, covariates, draws),
        answer_only_gaps(readings, layer, draws),
    )


def layers_of(of: Asked, results: Mapping[tuple[str, Any], Any]) -> list[LayerEvidence]:
    """The evidence of each layer from the results of a dataset's parts."""
    layers = []
    for layer in of.readings.layer_numbers:
        examined, adds, answer_only = results["layer", layer]
        read = results["refit", layer]
        layers.append(
            LayerEvidence(examined=examined, refit=read, adds=adds, answer_only=answer_only)
        )
    return layers


def _tables_of_mode(of: Asked, mode: Mode) -> Tables:
    rows, layers = _grouped(of, of.readings, mode)
    tables = {"pathways": rows, "layers": layers}
    if NEUTRAL.name in of.readings.logits:
        # Grouped by the control's own flips, so that its curves may be laid beside the knockout's.
        logits = {
            name: of.readings.logits[as_if]
            for name, as_if in ((CLEAN.name, CLEAN.name), (KNOCKOUT.name, NEUTRAL.name))
        }
        _, control = _grouped(of, replace(of.readings, logits=logits), mode)
        tables["control_layers"] = control.assign(intervention=NEUTRAL.name)
    return tables


def _grouped(of: Asked, readings: Readings, mode: Mode) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The group of every sample by layer, and ΔP of the groups."""
    config = of.config
    rows = pathways_table(
        readings, dataset=of.answers.dataset, modes=(mode,), grouping=config.grouping
    )
    layers = layers_table(
        rows,
        model=of.model,
        delta=config.delta,
        entity_by_id=readings.entity_by_id,
        seed=config.seed,
        resamples=config.resamples,
    )
    return rows, layers


def _tables(of: Asked) -> Tables:
    names = {"model": of.model, "dataset": of.answers.dataset}
    return {
        "probes": probes_table(
            of.readings, **names, seed=of.config.seed, resamples=of.config.resamples
        ),
        "controls": controls_table(of.readings, **names, delta=of.config.delta),
    }
