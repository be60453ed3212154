"""Cross-fitting: every probe of every layer, trained, calibrated and read on held-out questions.

The probes of a held-out fold, Platt's line included, are made from the questions of the other folds
alone: neither a state nor a label of the fold affects the probes that read it.

Platt scaling is the line from a probe's logit to one whose probability is right when held out. A
probe trained on fewer answers has logits of less spread for the same knowledge. Without this line
probabilities of probes "a" and "b", or of datasets of unlike size, could not be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from anchorscope.config import Balance, Config
from anchorscope.errors import UserError
from anchorscope.parallel import OnDone, in_parallel
from anchorscope.probes.folds import INNER_FOLDS, PROBES, Labelled, inner_folds, training_rows
from anchorscope.probes.probe_set import ProbeSet, Readings
from anchorscope.run_folder.states import StateBank
from anchorscope.stats.logistic import (
    check_finite,
    class_weights,
    fit_many,
    platt_lines,
    to_single,
)

# Against the mean of the losses. Held-out AUROC less that of the best C, at C = 1, 3 and 10: on
# states of the bundled model (mean of 5 layers) -0.006, 0, -0.007 with 320 answers and -0.013,
# -0.002, 0 with 512. On made-up states with falling spectra (n 320 to 3,000, width 576 and 1,536,
# mean of 12 worlds) -0.001, -0.005, -0.016 where 10 directions carry the signal, and -0.051,
# -0.024, -0.008 where 200 do.
DEFAULT_C = Config.C
# Weights [width] float32 and intercept by the fold held out; none where the other folds hold too
# few of a class.
FoldProbes = dict[int, tuple[np.ndarray, float]]


def fit_and_read_layer(
    states: Mapping[str, np.ndarray],
    answers: Labelled,
    config: Config,
    *,
    layer: int,
    calibrate: bool = True,
) -> tuple[ProbeSet, dict[str, np.ndarray]]:
    """Cross-fit the probes of one layer: the probes, and logits [probe, question] by pass.

    `states` maps a pass to the layer's states [question, width]; probes learn from "clean" alone.
    `calibrate` passes logits through Platt's line, so that their probabilities are right on
    held-out questions. The line is fitted within a probe's training questions, those of one
    entity held out together.
    """
    for name, own in states.items():
        _check_layer(own, name=name, layer=layer, ids=answers.ids)
    inner = inner_folds(answers.entities) if calibrate else None
    clean, fold, z = states["clean"], answers.fold, np.asarray(answers.z, dtype=np.float64)
    fits = [
        _fit_probes(clean, z, fold, held_out, inner, config.C, config.balance)
        for held_out in range(int(fold.max()) + 1)
    ]
    weights, intercept, n_train = (np.stack(part, axis=1) for part in zip(*fits, strict=True))
    probes = ProbeSet(
        probes=PROBES,
        weights=weights[:, :, None],
        intercept=intercept[:, :, None],
        n_train=n_train,
        C=float(config.C),
        balance=config.balance,
        calibrated=calibrate,
    )
    logits = {name: probes.logits(own[:, None], fold)[:, :, 0] for name, own in states.items()}
    return probes, logits


def readings_of(answers: Labelled, logits: Sequence[Mapping[str, np.ndarray]]) -> Readings:
    """Readings of a dataset from the logits [probe, question] of its layers, by pass."""
    return Readings(
        ids=answers.ids,
        z=answers.z,
        fold=answers.fold,
        probes=PROBES,
        logits={name: np.stack([own[name] for own in logits], axis=2) for name in logits[0]},
        entity=answers.covariates.entity,
    )


def stacked(layers: Sequence[ProbeSet]) -> ProbeSet:
    """Join the probes of single layers into one set, in their order."""
    weights = np.concatenate([probes.weights for probes in layers], axis=2)
    intercept = np.concatenate([probes.intercept for probes in layers], axis=2)
    return replace(layers[0], weights=weights, intercept=intercept)


def read_layers(
    bank: StateBank,
    answers: Labelled,
    config: Config,
    passes: Sequence[str],
    *,
    probes: ProbeSet | None = None,
    progress: OnDone | None = None,
) -> tuple[Readings, ProbeSet]:
    """Read the stored states of some passes with `probes`, or with probes trained on them.

    Each layer is read in a process of its own, which takes its states from disk.
    """

    def read(layer: int) -> tuple[ProbeSet, dict[str, np.ndarray]]:
        states = {name: bank.layer(name, layer) for name in passes}
        if probes is None:
            return fit_and_read_layer(states, answers, config, layer=layer)
        own = probes.at_layer(layer)
        fold = answers.fold
        return own, {n: own.logits(of[:, None], fold)[:, :, 0] for n, of in states.items()}

    layers = in_parallel(read, range(1, bank.layers + 1), progress=progress)
    readings = readings_of(answers, [logits for _, logits in layers])
    return readings, stacked([layer_probes for layer_probes, _ in layers])


def _fit_probes(
    x: np.ndarray,
    z: np.ndarray,
    fold: np.ndarray,
    held_out: int,
    inner: np.ndarray | None,
    C: float,
    balance: Balance,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit the probes of a fold: weights [probe, width], intercepts and training sizes [probe].

    Each probe's fit is followed by the fits of its inner probes, which calibrate it: the same
    questions less one of the `inner` folds [question]. None: no calibration.
    """
    rows = fold != held_out
    learns = np.array([training_rows(fold, held_out=held_out, probe=name)[rows] for name in PROBES])
    x, z = np.asarray(x[rows], dtype=np.float64), z[rows]
    fits, calibrates = learns[:, None], np.zeros(len(learns), dtype=bool)
    if inner is not None:
        inner = inner[rows]
        kept = np.arange(INNER_FOLDS)[:, None] != inner
        fits = np.concatenate([fits, fits & kept], axis=1)  # [probe, fit, training question]
        ones, count = (fits * z).sum(axis=2), fits.sum(axis=2)
        # Not where all of a class are in one inner fold.
        calibrates = ((ones > 0) & (ones < count)).all(axis=1)
        fits[~calibrates] = learns[~calibrates, None]
    each = fits.shape[1]
    fits = fits.reshape(-1, len(z))
    balanced = class_weights(z, fits, balance)
    weights, intercept = fit_many(x, z, balanced, np.full(len(fits), float(C)))
    if inner is not None:
        read = (weights @ x.T + intercept[:, None]).reshape(-1, each, len(x))
        unseen = read[:, 1 + inner, np.arange(len(x))]  # [probe, training question]
        weights, intercept = weights[::each], intercept[::each]
        slope, shift = platt_lines(unseen, z, balanced[::each])
        slope, shift = np.where(calibrates, [slope, shift], [[1.0], [0.0]])
        weights, intercept = weights * slope[:, None], intercept * slope + shift
    return *to_single(weights, intercept, x, learns), learns.sum(axis=1)


def _check_layer(x: np.ndarray, *, name: str, layer: int, ids: Sequence[str]) -> None:
    """Raise a UserError where states [question, width] of layer k are broken."""
    finite = np.isfinite(x).all(axis=1)
    if finite.all():
        return
    # Under an intervention a state that is NaN throughout means "there is none"; a state that is
    # broken in part never does, and the clean pass must be complete.
    absent = np.isnan(x).all(axis=1) if name != "clean" else np.zeros(len(x), dtype=bool)
    broken = np.flatnonzero(~finite & ~absent)
    if len(broken):
        raise UserError(
            f"States under '{name}' hold NaN or inf at layer {layer} for {len(broken)} of "
            f"{len(ids)} questions (first: {ids[broken[0]]}). Compute them again, in float32 "
            "where half precision overflows, or leave these questions out."
        )


# Probes of other labels: one per fold, trained on the others, several tasks on the same states.


class FoldTask(NamedTuple):
    """Labels to learn on some rows of the states, and how weak the penalty is."""

    rows: np.ndarray  # [member], numbers
    label: np.ndarray  # [member], 0 or 1
    fold: np.ndarray  # [member], 0 or above
    C: float


def fit_fold_tasks(
    x: np.ndarray, tasks: Sequence[FoldTask], *, balance: Balance = "weights", least: int = 1
) -> list[FoldProbes]:
    """The probes of several tasks on the same states [question, width], all fitted at once.

    A fold has no probe where the other folds hold fewer than `least` of a class.
    """
    x = np.asarray(x, dtype=np.float64)
    check_finite(x)
    probes: list[FoldProbes] = [{} for _ in tasks]
    places, labels, learns = [], [], []  # of each fit
    for task, own in zip(tasks, probes, strict=True):
        label = np.zeros(len(x))
        label[task.rows] = task.label == 1
        for number in map(int, np.unique(task.fold)):
            rows = task.rows[task.fold != number]
            ones = label[rows].sum()
            if min(ones, len(rows) - ones) >= max(least, 1):
                places.append((own, number, float(task.C)))
                labels.append(label)
                learns.append(np.isin(np.arange(len(x)), rows))
    if places:
        y, member = np.array(labels), np.array(learns)
        C = np.array([C for _, _, C in places])
        fitted = fit_many(x, y, class_weights(y, member, balance), C)
        made = zip(places, *to_single(*fitted, x, member), strict=True)
        for (own, number, _), weights, intercept in made:
            own[number] = weights, float(intercept)
    return probes


def task_logits(
    probes: Sequence[FoldProbes], tasks: Sequence[FoldTask], states: np.ndarray
) -> list[np.ndarray]:
    """Held-out logits of label 1 for the rows of each task, [member], on states [question, width].

    Each row is read by the probe that held its fold out; NaN where the fold has no probe.
    """
    states, logits = states.astype(np.float64), []
    for task, own in zip(tasks, probes, strict=True):
        logits.append(np.full(len(task.rows), np.nan))
        for number, (weights, intercept) in own.items():
            read = task.fold == number
            logits[-1][read] = states[task.rows[read]] @ weights.astype(np.float64) + intercept
    return logits


def fold_logits(
    x: np.ndarray,
    labels: np.ndarray,
    fold: np.ndarray,
    *,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    least: int = 1,
) -> np.ndarray:
    """Cross-fitted logits [task, question] for labels [task, question] on states x.

    Labels are 0 or 1, NaN where a question is not in the task; its logit is NaN then, and where
    the other folds hold fewer than `least` of a class.
    """
    members = [np.flatnonzero(~np.isnan(label)) for label in labels]
    tasks = [FoldTask(r, own[r], fold[r], C) for own, r in zip(labels, members, strict=True)]
    probes = fit_fold_tasks(x, tasks, balance=balance, least=least)
    logits = np.full(labels.shape, np.nan)
    for row, task, read in zip(logits, tasks, task_logits(probes, tasks, x), strict=True):
        row[task.rows] = read
    return logits
