"""What strict mode asks of one dataset, in parts that any process can compute.

A part reads the states it needs from the run folder, a layer at a time, and nothing of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from anchorscope.config import Config, unit_of
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.errors import UserError
from anchorscope.pathways.group_adds import Adds, group_adds
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.refit import Refit, distances, has_state, refit, refit_request
from anchorscope.pathways.strict_layer import StrictDraws, StrictLayer, close_up, examine_layer
from anchorscope.pathways.strict_tables import LayerEvidence, answer_only_gaps
from anchorscope.pathways.tables import controls_table, layers_table, probes_table
from anchorscope.pathways.two_pathways.power import WORLDS, shown_in_worlds
from anchorscope.probes.at_once import There, fits_of_layers, of_layers
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.many_fits import Made, Request
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.run_folder.states import StateBank

_WORLDS_AT_ONCE = 3  # planted worlds of one part
States = Mapping[str, np.ndarray]  # pass -> [question, layer, width]
Tables = dict[str, pd.DataFrame]
Part = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One dataset, and the layer at which its finding is made."""

    model: str
    config: Config
    answers: Labelled
    readings: Readings
    bank: StateBank
    layer: int  # k, from 1
    held: tuple[str, ...]  # passes that further sets of folds read


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
    worlds = [range(at, min(at + _WORLDS_AT_ONCE, WORLDS)) for at in
              range(0, WORLDS, _WORLDS_AT_ONCE)]  # fmt: skip
    fits, away = refits
    return {
        **{("folds", seed): partial(_other_folds, of, seed) for seed in _other_seeds(of.config)},
        **{("mode", mode): partial(_tables_of_mode, of, mode) for mode in MODES},
        **{("refit", k): partial(_refit, of, k, fits.get(k), away.get(k)) for k in layers},
        **{("layer", layer): partial(_layer, of, layer) for layer in layers},
        **{("worlds", some.start): partial(_worlds, of, some) for some in worlds},
        ("tables", ""): partial(_tables, of),
    }


def _other_seeds(config: Config) -> range:
    return range(1, config.fold_seeds)


def draws_of(config: Config) -> StrictDraws:
    """How many draws a config asks for, and in which unit."""
    return StrictDraws(seed=config.seed, resamples=config.resamples, points=unit_of(config.delta))


def examined_again(
    layer: int, states: States, answers: Labelled, config: Config, *, seed: int
) -> StrictLayer | None:
    """A layer examined under another set of folds, for which the probes are trained anew.

    `states` are [question, 1, width]. None where these folds leave a probe too few of a class;
    verdict.csv counts the sets.
    """
    fold = entity_folds(answers.entities, folds=config.folds, seed=config.seed + seed)
    try:
        again, _ = cross_fit(
            states,
            ids=answers.ids,
            z=answers.z,
            fold=fold,
            entity=answers.entities,
            C=config.C,
            balance=config.balance,
        )
    except UserError:
        return None
    draws = replace(draws_of(config), seed=config.seed + seed)
    seen = examine_layer(again, 1, draws, covariates=answers.covariates, closely=True)
    return replace(seen, layer=layer)


def _other_folds(of: Asked, seed: int) -> StrictLayer | None:
    states = {name: of.bank.layer(name, of.layer)[:, None] for name in of.held}
    return examined_again(of.layer, states, of.answers, of.config, seed=seed)


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
    closely = layer == of.layer
    return (
        examine_layer(readings, layer, draws, covariates=covariates, closely=closely),
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


def _worlds(of: Asked, worlds: range) -> list[bool]:
    logits, known = close_up(of.readings, of.layer, of.answers.covariates)
    return shown_in_worlds(logits, known, draws_of(of.config), worlds)


def _tables_of_mode(of: Asked, mode: Mode) -> Tables:
    config, readings = of.config, of.readings
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
    return {"pathways": rows, "layers": layers}


def _tables(of: Asked) -> Tables:
    names = {"model": of.model, "dataset": of.answers.dataset}
    return {
        "probes": probes_table(
            of.readings, **names, seed=of.config.seed, resamples=of.config.resamples
        ),
        "controls": controls_table(of.readings, **names, delta=of.config.delta),
    }
