"""Cross-fitting: every probe of every layer, trained, and read where it never looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorscope.config import Balance
from anchorscope.errors import UserError
from anchorscope.parallel import OnDone, in_parallel
from anchorscope.probes.calibration import held_out_lines
from anchorscope.probes.folds import PROBES, check_enough, training_rows
from anchorscope.probes.many_fits import (
    DEFAULT_C,
    Made,
    Request,
    class_weights,
    fit_many,
    to_single,
)
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings, check_layer, check_states, read
from anchorscope.run_folder.states import StateBank


def cross_fit(
    states: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    z: np.ndarray,
    fold: np.ndarray,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    calibrate: bool = True,
    dataset: str = "The data",
    workers: int | None = None,
    progress: OnDone | None = None,
) -> tuple[Readings, ProbeSet]:
    """Readings of all questions under all interventions, and the probes that gave them.

    `states` maps an intervention to [question, layer, width] (memory-mapped is fine: one layer
    is converted at a time). Probes learn from the "clean" states alone. `calibrate`: logits go
    through Platt's line, so that their probabilities are right on held-out questions.
    """
    z, fold = np.asarray(z), np.asarray(fold)
    check_states(states, ids=ids, z=z, fold=fold)
    _check_folds(fold)
    check_enough(z, fold, dataset=dataset)
    probes = fit_probes(
        states["clean"],
        z=z,
        fold=fold,
        C=C,
        balance=balance,
        calibrate=calibrate,
        workers=workers,
        progress=progress,
    )
    return read(probes, states, ids=ids, z=z, fold=fold), probes


def fit_probes(
    clean: np.ndarray,
    *,
    z: np.ndarray,
    fold: np.ndarray,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    calibrate: bool = True,
    workers: int | None = None,
    progress: OnDone | None = None,
) -> ProbeSet:
    """The probes trained on clean states [question, layer, width], for each fold held out."""
    layers, learns = clean.shape[1], learners(fold)

    def fit_layer(layer: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.asarray(clean[:, layer], dtype=np.float64)
        return _fit_layer(x, z, fold, learns, C=C, balance=balance, calibrate=calibrate)

    fitted = in_parallel(fit_layer, range(layers), workers=workers, progress=progress)
    return ProbeSet(
        probes=PROBES,
        weights=np.stack([weights for weights, _ in fitted], axis=2),
        intercept=np.stack([intercept for _, intercept in fitted], axis=2),
        n_train=learns.sum(axis=2),
        C=float(C),
        balance=balance,
        calibrated=calibrate,
    )


def learners(fold: np.ndarray) -> np.ndarray:
    """Who learns from what, [probe, fold, question] bool."""
    held_out = range(int(fold.max()) + 1)
    return np.array(
        [[training_rows(fold, held_out=of, probe=probe) for of in held_out] for probe in PROBES]
    )


def fit_and_read_layer(
    states: Mapping[str, np.ndarray],
    *,
    layer: int,
    ids: Sequence[str],
    z: np.ndarray,
    fold: np.ndarray,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    fits: Made | None = None,
) -> tuple[ProbeSet, dict[str, np.ndarray]]:
    """The probes of layer k alone, and their logits [probe, question] under every pass.

    `states` maps a pass to the layer's states [question, width]. The same as `cross_fit` gives of
    that layer: for callers who hold a layer at a time. `fits` are those of `probe_request`, where
    somebody has made them already.
    """
    for name, of in states.items():
        check_layer(of, name=name, layer=layer, ids=ids)
    learns = learners(fold)
    x = np.asarray(states["clean"], dtype=np.float64)
    how = {"C": C, "balance": balance, "calibrate": True, "fits": fits}
    weights, intercept = _fit_layer(x, z, fold, learns, **how)
    probes = ProbeSet(
        probes=PROBES,
        weights=weights[:, :, None],
        intercept=intercept[:, :, None],
        n_train=learns.sum(axis=2),
        C=float(C),
        balance=balance,
        calibrated=True,
    )
    logits = {name: probes.logits(of[:, None], fold)[:, :, 0] for name, of in states.items()}
    return probes, logits


def probe_request(z: np.ndarray, fold: np.ndarray, *, C: float, balance: Balance) -> Request:
    """The fits behind the probes of a layer, kind by kind and fold by fold."""
    learns = learners(fold)
    return _request(z, learns.reshape(-1, len(z)), C=C, balance=balance)


def _request(z: np.ndarray, rows: np.ndarray, *, C: float, balance: Balance) -> Request:
    y = np.broadcast_to(np.asarray(z, dtype=np.float64), rows.shape)
    return Request(y=y, weights=class_weights(z, rows, balance), C=np.full(len(rows), float(C)))


def probes_of_layer(
    bank: StateBank, layer: int, passes: Sequence[str], **how: Any
) -> tuple[ProbeSet, dict[str, np.ndarray]]:
    """`fit_and_read_layer` on the states of these passes in a run folder."""
    return fit_and_read_layer({n: bank.layer(n, layer) for n in passes}, layer=layer, **how)


def stacked(layers: Sequence[ProbeSet]) -> ProbeSet:
    """The probes of single layers as those of all layers, in their order."""
    weights = np.concatenate([of.weights for of in layers], axis=2)
    intercept = np.concatenate([of.intercept for of in layers], axis=2)
    return replace(layers[0], weights=weights, intercept=intercept)


def _fit_layer(
    x: np.ndarray,
    z: np.ndarray,
    fold: np.ndarray,
    learns: np.ndarray,
    *,
    C: float,
    balance: Balance,
    calibrate: bool,
    fits: Made | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [probe, fold, width] and intercepts [probe, fold] of one layer x [question, width].

    `learns` [probe, fold, question] says who learns from what.
    """
    kinds, folds, n = learns.shape
    rows = learns.reshape(-1, n)
    weights, intercept = fits or fit_many(x, *_request(z, rows, C=C, balance=balance))
    if calibrate:
        # All probes read all questions, and the own fold's is kept: one product.
        read = (weights @ x.T + intercept[:, None]).reshape(kinds, folds, n)
        others = class_weights(z, np.arange(folds)[:, None] != fold, balance)
        lines = held_out_lines(read[:, fold, np.arange(n)], z, fold, others)
        slope, shift = (of.reshape(-1) for of in lines)
        weights, intercept = weights * slope[:, None], intercept * slope + shift
    weights, intercept = to_single(weights, intercept, x, rows)
    return weights.reshape(kinds, folds, -1), intercept.reshape(kinds, folds)


def _check_folds(fold: np.ndarray) -> None:
    present = np.unique(fold)
    if len(present) < 3 or not np.array_equal(present, np.arange(len(present))):
        raise UserError(
            f"Folds are {present.tolist()}; accepted: 0, 1, 2, ... without a gap, at least three. "
            "Make them with entity_folds on these very questions."
        )
