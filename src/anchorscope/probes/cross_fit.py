"""Cross-fitting: every probe of every layer, trained, and read where it never looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anchorscope.errors import UserError
from anchorscope.parallel import OnDone, in_parallel
from anchorscope.probes.folds import PROBES, check_enough, training_rows
from anchorscope.probes.linear_probe import DEFAULT_C, Balance, LinearProbe
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
    dataset: str = "The data",
    workers: int | None = None,
    progress: OnDone | None = None,
) -> tuple[Readings, ProbeSet]:
    """Readings of all questions under all interventions, and the probes that gave them.

    `states` maps an intervention to [question, layer, width] (memory-mapped is fine: one layer
    is converted at a time). Probes learn from the "clean" states alone.
    """
    z, fold = np.asarray(z), np.asarray(fold)
    check_states(states, ids=ids, z=z, fold=fold)
    _check_folds(fold)
    check_enough(z, fold, dataset=dataset)
    probes = fit_probes(
        states["clean"], z=z, fold=fold, C=C, balance=balance, workers=workers, progress=progress
    )
    return read(probes, states, ids=ids, z=z, fold=fold), probes


def fit_probes(
    clean: np.ndarray,
    *,
    z: np.ndarray,
    fold: np.ndarray,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    workers: int | None = None,
    progress: OnDone | None = None,
) -> ProbeSet:
    """The probes trained on clean states [question, layer, width], for each fold held out."""
    _, layers, width = clean.shape
    folds = int(fold.max()) + 1
    parts = [
        [training_rows(fold, held_out=held_out, probe=probe) for held_out in range(folds)]
        for probe in PROBES
    ]

    def fit_layer(layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights [probe, fold, width] and intercepts [probe, fold]."""
        x = np.asarray(clean[:, layer], dtype=np.float64)
        weights = np.zeros((len(PROBES), folds, width), dtype=np.float32)
        intercept = np.zeros((len(PROBES), folds))
        for kind, held_out in np.ndindex(intercept.shape):
            rows = parts[kind][held_out]
            probe = LinearProbe(C=C, balance=balance).fit(x[rows], z[rows])
            weights[kind, held_out], intercept[kind, held_out] = probe.coef_[0], probe.intercept_[0]
        return weights, intercept

    fitted = in_parallel(fit_layer, range(layers), workers=workers, progress=progress)
    return ProbeSet(
        probes=PROBES,
        weights=np.stack([weights for weights, _ in fitted], axis=2),
        intercept=np.stack([intercept for _, intercept in fitted], axis=2),
        n_train=np.array([[rows.sum() for rows in of] for of in parts], dtype=np.int64),
        C=float(C),
        balance=balance,
    )


def _check_folds(fold: np.ndarray) -> None:
    present = np.unique(fold)
    if len(present) < 3 or not np.array_equal(present, np.arange(len(present))):
        raise UserError(
            f"Folds are {present.tolist()}; accepted: 0, 1, 2, ... without a gap, at least three. "
            "Make them with entity_folds on these very questions."
        )
