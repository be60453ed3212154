"""Cross-fitting: every probe of every layer, trained, and read where it never looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anchorscope.errors import UserError
from anchorscope.parallel import OnDone, in_parallel
from anchorscope.probes.calibration import held_out_lines
from anchorscope.probes.folds import PROBES, check_enough, training_rows
from anchorscope.probes.linear_probe import DEFAULT_C, Balance
from anchorscope.probes.many_fits import class_weights, fit_many, to_single
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings, check_states, read


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
    folds, layers = int(fold.max()) + 1, clean.shape[1]
    learns = np.array(
        [
            [training_rows(fold, held_out=held_out, probe=probe) for held_out in range(folds)]
            for probe in PROBES
        ]
    )  # [probe, fold, question]

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


def _fit_layer(
    x: np.ndarray,
    z: np.ndarray,
    fold: np.ndarray,
    learns: np.ndarray,
    *,
    C: float,
    balance: Balance,
    calibrate: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [probe, fold, width] and intercepts [probe, fold] of one layer x [question, width].

    `learns` [probe, fold, question] says who learns from what.
    """
    kinds, folds, n = learns.shape
    rows = learns.reshape(-1, n)
    weights, intercept = fit_many(x, z, class_weights(z, rows, balance), np.full(len(rows), C))
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
