"""Cross-fitting: every probe of every layer, trained, calibrated and read on held-out questions.

The probes of a held-out fold, Platt's line included, are made from the questions of the other folds
alone: neither a state nor a label of the fold can reach the fold's own readings.

Platt scaling is the line from a probe's logit to one whose probability is right when held out. A
probe trained on fewer answers has logits of less spread for the same knowledge. Without this line
probabilities of probes "a" and "b", or of datasets of unlike size, could not be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from anchorscope.config import Balance
from anchorscope.errors import UserError
from anchorscope.probes.folds import (
    INNER_FOLDS,
    PROBES,
    check_enough,
    inner_folds,
    training_rows,
)
from anchorscope.probes.many_fits import (
    DEFAULT_C,
    Made,
    Request,
    class_weights,
    fit_many,
    to_single,
)
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings, check_layer, check_states
from anchorscope.run_folder.states import StateBank

# A probe at chance keeps its order and says about 1/2; a falling line would reverse the order.
LEAST_SLOPE = 0.05
_STEPS, _SMALL, _HALVINGS = 50, 1e-10, 20


def cross_fit(
    states: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    z: np.ndarray,
    fold: np.ndarray,
    entity: Sequence[str] | None = None,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    calibrate: bool = True,
    dataset: str = "The data",
) -> tuple[Readings, ProbeSet]:
    """Readings of all questions under all interventions, and the probes that gave them.

    `states` maps an intervention to [question, layer, width] (memory-mapped is fine: one layer
    is converted at a time). Probes learn from the "clean" states alone. `calibrate` passes logits
    through Platt's line, so that their probabilities are right on held-out questions. The line is
    fitted within a probe's training questions, those of one `entity` [question] held out together
    (None: every question has its own).
    """
    z, fold = np.asarray(z), np.asarray(fold)
    check_states(states, ids=ids, z=z, fold=fold)
    present = np.unique(fold)
    if len(present) < 3 or not np.array_equal(present, np.arange(len(present))):
        raise UserError(
            f"Folds are {present.tolist()}; accepted: 0, 1, 2, ... without a gap, at least three. "
            "Make them with entity_folds on these very questions."
        )
    check_enough(z, fold, dataset=dataset)

    layers = [
        fit_and_read_layer(
            {name: own[:, layer - 1] for name, own in states.items()},
            layer=layer,
            ids=ids,
            z=z,
            fold=fold,
            entity=entity,
            C=C,
            balance=balance,
            calibrate=calibrate,
        )
        for layer in range(1, states["clean"].shape[1] + 1)
    ]
    probes = stacked([probes for probes, _ in layers])
    logits = {name: np.stack([read[name] for _, read in layers], axis=2) for name in states}
    readings = Readings(
        ids=tuple(ids),
        z=z.astype(np.int64),
        fold=fold.astype(np.int64),
        probes=probes.probes,
        logits=logits,
    )
    return readings, probes


def fit_and_read_layer(
    states: Mapping[str, np.ndarray],
    *,
    layer: int,
    ids: Sequence[str],
    z: np.ndarray,
    fold: np.ndarray,
    entity: Sequence[str] | None = None,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    calibrate: bool = True,
) -> tuple[ProbeSet, dict[str, np.ndarray]]:
    """The probes of layer k alone, and their logits [probe, question] under every pass.

    `states` maps a pass to the layer's states [question, width].
    """
    for name, own in states.items():
        check_layer(own, name=name, layer=layer, ids=ids)
    entities = ids if entity is None else entity
    folds, inner = int(fold.max()) + 1, inner_folds(entities) if calibrate else None
    parts = [_training_part(np.asarray(z), fold, f, inner, C, balance) for f in range(folds)]
    weights, intercept = _fit_layer(states["clean"], parts)
    learns = [[training_rows(fold, held_out=f, probe=p) for f in range(folds)] for p in PROBES]
    probes = ProbeSet(
        probes=PROBES,
        weights=weights[:, :, None],
        intercept=intercept[:, :, None],
        n_train=np.array(learns).sum(axis=2),
        C=float(C),
        balance=balance,
        calibrated=calibrate,
    )
    logits = {name: probes.logits(own[:, None], fold)[:, :, 0] for name, own in states.items()}
    return probes, logits


def probes_of_layer(
    bank: StateBank, layer: int, passes: Sequence[str], **options: Any
) -> tuple[ProbeSet, dict[str, np.ndarray]]:
    """`fit_and_read_layer` on the states of these passes in a run folder."""
    return fit_and_read_layer({n: bank.layer(n, layer) for n in passes}, layer=layer, **options)


def stacked(layers: Sequence[ProbeSet]) -> ProbeSet:
    """The probes of single layers as those of all layers, in their order."""
    weights = np.concatenate([probes.weights for probes in layers], axis=2)
    intercept = np.concatenate([probes.intercept for probes in layers], axis=2)
    return replace(layers[0], weights=weights, intercept=intercept)


@dataclass(frozen=True, kw_only=True)
class _TrainingPart:
    """The questions outside a held-out fold, and the fits that its probes need.

    Behind the fit of each kind of probe come those of its inner probes, which calibrate it: the
    same questions less an inner fold.
    """

    rows: np.ndarray  # [question] bool; the other fields are about these questions alone
    z: np.ndarray  # [training question]
    learns: np.ndarray  # [probe, training question] bool
    inner: np.ndarray | None  # the inner fold of each [training question]; None: no calibration
    calibrates: np.ndarray  # [probe] bool; not where all of a class are in one inner fold
    request: Request  # the fits of each kind of probe: the probe, then its inner probes


def _training_part(
    z: np.ndarray,
    fold: np.ndarray,
    held_out: int,
    inner: np.ndarray | None,
    C: float,
    balance: Balance,
) -> _TrainingPart:
    """The training part of a held-out fold; `inner` are the inner folds, [question]."""
    rows = fold != held_out
    learns = np.array([training_rows(fold, held_out=held_out, probe=of)[rows] for of in PROBES])
    z, fits = z[rows].astype(np.float64), learns[:, None]  # [probe, fit, training question]
    calibrates = np.full(len(learns), inner is not None)
    if inner is not None:
        inner = inner[rows]
        kept = np.arange(INNER_FOLDS)[:, None] != inner
        fits = np.concatenate([fits, fits & kept], axis=1)
        ones, count = (fits * z).sum(axis=2), fits.sum(axis=2)
        calibrates = ((ones > 0) & (ones < count)).all(axis=1)
        fits[~calibrates] = learns[~calibrates, None]
    fits = fits.reshape(-1, len(z))
    request = Request(
        y=np.broadcast_to(z, fits.shape),
        weights=class_weights(z, fits, balance),
        C=np.full(len(fits), float(C)),
    )
    return _TrainingPart(
        rows=rows, z=z, learns=learns, inner=inner, calibrates=calibrates, request=request
    )


def _fit_layer(x: np.ndarray, parts: Sequence[_TrainingPart]) -> tuple[np.ndarray, np.ndarray]:
    """Weights [probe, fold, width] and intercepts [probe, fold] of a layer x [question, width]."""
    by_fold = [_fit_part(np.asarray(x[part.rows], dtype=np.float64), part) for part in parts]
    weights, intercept = zip(*by_fold, strict=True)
    return np.stack(weights, axis=1), np.stack(intercept, axis=1)


def _fit_part(x: np.ndarray, part: _TrainingPart) -> Made:
    """Weights [probe, width] and intercepts [probe] from states x [training question, width]."""
    weights, intercept = fit_many(x, *part.request)
    if part.inner is not None:
        each = 1 + INNER_FOLDS  # fits of a kind of probe, the probe itself first
        read = (weights @ x.T + intercept[:, None]).reshape(-1, each, len(x))
        held_out = read[:, 1 + part.inner, np.arange(len(x))]  # [probe, training question]
        weights, intercept = weights[::each], intercept[::each]
        slope, shift = platt_lines(held_out, part.z, part.request.weights[::each])
        slope, shift = np.where(part.calibrates, [slope, shift], [[1.0], [0.0]])
        weights, intercept = weights * slope[:, None], intercept * slope + shift
    return to_single(weights, intercept, x, part.learns)


def platt_lines(
    logits: np.ndarray, z: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept [fit] of log-odds = slope · logit + intercept, fitted to z [question].

    `logits` and `weights` are [fit, question]; weight 0 leaves a question out. The targets are
    Platt's, drawn a little towards each other, so that separated classes have a finite line.
    """
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = weights > 0
    wrong, right = (np.sum(used & (z == value), axis=1, keepdims=True) for value in (1, 0))
    target = np.where(z == 1, (wrong + 1) / (wrong + 2), 1 / (right + 2))
    line = np.zeros((2, len(logits)))
    line = _newton(logits, target, weights, line, fixed=np.zeros(len(logits), dtype=bool))
    flat = line[0] < LEAST_SLOPE
    if flat.any():
        line[:, flat] = np.array([[LEAST_SLOPE], [0.0]])
        line = _newton(logits, target, weights, line, fixed=flat)
    return line[0], line[1]


def _newton(
    logits: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    line: np.ndarray,
    *,
    fixed: np.ndarray,
) -> np.ndarray:
    """The lines [2, fit] of least loss; `fixed` fits [fit] keep their slope.

    Two numbers a fit need no solver for matrices: `fit_many` takes sixteen times as long.
    """
    loss = _loss(logits, target, weights, line)
    for _ in range(_STEPS):
        chance = expit(line[0][:, None] * logits + line[1][:, None])
        residual, bend = weights * (chance - target), weights * chance * (1 - chance)
        up = np.stack([np.where(fixed, 0.0, (residual * logits).sum(1)), residual.sum(1)])
        a = np.where(fixed, 1.0, (bend * logits**2).sum(1))
        b, c = np.where(fixed, 0.0, (bend * logits).sum(1)), bend.sum(1)
        # Equal logits leave the slope open; the ridge then leaves it where it is.
        a = a + 1e-12
        step = -np.stack([c * up[0] - b * up[1], a * up[1] - b * up[0]]) / (a * c - b**2)
        line, before = line + step, line
        for _ in range(_HALVINGS):
            after = _loss(logits, target, weights, line)
            worse = after > loss + 1e-15
            if not worse.any():
                break
            line = np.where(worse, (line + before) / 2, line)
        loss = after
        if np.abs(line - before).max() < _SMALL:
            break
    return line


def _loss(
    logits: np.ndarray, target: np.ndarray, weights: np.ndarray, line: np.ndarray
) -> np.ndarray:
    """The mean loss [fit] of lines [2, fit]."""
    moved = line[0][:, None] * logits + line[1][:, None]
    # log(1 + exp(moved)); np.logaddexp takes five times as long.
    soft = np.maximum(moved, 0.0) + np.log1p(np.exp(-np.abs(moved)))
    return (weights * (soft - target * moved)).sum(axis=1)
