"""Detectors on answers they never saw: held-out folds, and other datasets.

Folds give one row per answer, detector and split. Transfer trains on one dataset and tests on
another, or trains on all but one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from anchorscope.detect.compare import against, aurocs
from anchorscope.detect.kinds import AUTO, DEPLOYED, METHODS, Auto, make_methods
from anchorscope.detect.material import Material, join
from anchorscope.detect.method import Method
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.probes.folds import SPLITS, Split, check_classes, outer_folds
from anchorscope.progress import Progress, Quiet
from anchorscope.stats.intervals import percentile_interval
from anchorscope.stats.ranking import ece

SCORES = (
    "dataset", "split", "detector", "fold", "id", "entity", "z", "score", "probability", "ms",
    "passes", "chosen",
)  # fmt: skip


def evaluate(
    material: Material | Sequence[Material],
    *,
    names: Sequence[str] = (*METHODS, AUTO),
    splits: Sequence[Split] = SPLITS,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """SCORES of each answer by each detector, from a fit on folds without it.

    Of several datasets each is evaluated by itself; the folds of all are fitted at once.
    """
    progress = progress or Quiet()
    parts = [material] if isinstance(material, Material) else list(material)
    usable = {part.name: _usable(part, names, progress) for part in parts}
    tests = [
        test for part in parts for split in splits for test in _tests(part, split, folds, seed)
    ]
    progress.start(f"detectors on {', '.join(usable)}", len(tests))
    trained = fit_each([(test.train, usable[test.held.name]) for test in tests], progress)
    # Scored one after the other: the milliseconds are an answer's, not those of its neighbours.
    frames = [
        rows_of(one, name, test.held).assign(split=test.split, fold=test.fold)
        for test, fitted in zip(tests, trained, strict=True)
        for name, one in fitted.items()
    ]
    return pd.concat(frames, ignore_index=True).reindex(columns=list(SCORES))


def _usable(material: Material, names: Sequence[str], progress: Progress) -> list[str]:
    """The detectors that can be used on the material; a note on those that cannot."""
    check_classes(material.z, dataset=material.name)
    left_out = fit_reasons(material, names)
    for reason in dict.fromkeys(left_out.values()):
        alike = ", ".join(name for name, why in left_out.items() if why == reason)
        progress.note(f"{material.name}: {alike} left out, {reason}")
    usable = [name for name in names if name not in left_out]
    if not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UserError(
            f"None of the detectors can be used on {material.name}. {reasons}. Take others, or "
            "answers of `anchorscope detect collect`."
        )
    return usable


class _Test(NamedTuple):
    """One fold: what is learnt from, and what is held out."""

    split: Split
    fold: int
    train: Material
    held: Material


def _tests(material: Material, split: Split, folds: int, seed: int) -> list[_Test]:
    fold = outer_folds(material.z, material.entities, split=split, folds=folds, seed=seed)
    # Inner folds of the same kind: a score is judged by what it is to be used for.
    answers = replace(material, folds_by=split)
    return [
        _Test(split, number, answers.take(fold != number, seed=seed), answers.take(fold == number))
        for number in range(folds)
    ]


def rows_of(method: Method, name: str, test: Material) -> pd.DataFrame:
    """One row per test answer: score, probability, and the milliseconds it took."""
    method.decision_function(test)  # reads the states from disk, which is not to be timed
    begun = time.perf_counter()
    raw = method.decision_function(test)
    each = (time.perf_counter() - begun) * 1000 / max(1, len(test))
    check_scores(name, raw)
    cost = method.cost(test)
    return pd.DataFrame(
        {
            "dataset": test.name,
            "detector": name,
            "id": test.ids,
            "z": test.z,
            "entity": test.entities,
            # Fits on different folds are put on one scale; a score without a fit has one already.
            "score": method.calibration_.evidence(raw) if method.learns else raw,
            "probability": method.calibration_.probability(raw),
            "ms": each + cost.ms,
            "passes": cost.passes,
            "chosen": chosen_by(method),
        }
    )


def chosen_by(method: Method) -> str:
    """What the training answers chose, in words: "layer 17, C 3.0"."""
    if isinstance(method, Auto):
        return method.best_.name
    about = method.about()
    kept = {key: about[key] for key in ("layer", "layers", "C", "beta") if key in about}
    return ", ".join(f"{key} {value}" for key, value in kept.items())


def check_same_model(weights: Sequence[str]) -> None:
    """Raise a UserError where runs of different models are put together."""
    if len(set(weights)) > 1:
        raise UserError(
            "These runs are of different models, and the states of one mean nothing to the other. "
            "Evaluate each model by itself."
        )


def fit_all(material: Material, names: Sequence[str]) -> dict[str, Method]:
    """Fresh detectors fitted on the material, by the names asked for.

    `auto` chooses among all that can be deployed, whether they are asked for or not.
    """
    wanted = dict.fromkeys((*names, *(DEPLOYED if AUTO in names else ())))
    wanted.pop(AUTO, None)
    fitted: dict[str, Method] = {
        name: one.fit(material)
        for name, one in make_methods(wanted).items()
        if not one.lacks(material)
    }
    if AUTO in names:
        candidates = [fitted[name] for name in DEPLOYED if name in fitted]
        fitted[AUTO] = Auto().take(candidates, material.z)
    return {name: fitted[name] for name in names if name in fitted}


def fit_each(
    work: Sequence[tuple[Material, Sequence[str]]], progress: Progress
) -> list[dict[str, Method]]:
    """`fit_all` on each of the materials with its detectors' names, several at a time."""
    return in_parallel(
        lambda part: fit_all(*part), work, progress=lambda done, total: progress.advance()
    )


def fit_reasons(material: Material, names: Sequence[str]) -> dict[str, str]:
    """Why detectors cannot be used on the material, by name."""
    methods = make_methods([name for name in names if name != AUTO])
    return {name: reason for name, one in methods.items() if (reason := one.lacks(material))}


def transfer_table(
    parts: Sequence[Material],
    *,
    model: str,
    names: Sequence[str] = (*METHODS, AUTO),
    seed: int = 0,
    resamples: int = 2000,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row per detector, training set and test set: AUROC with its interval, ECE, and the
    paired difference from the best single baseline (`vs_best`; Holm's p over the detectors).

    `kind` is "transfer" (one dataset to another) or "left-out" (all others to this one).
    """
    if len(parts) < 2:
        raise UserError("Transfer needs two datasets at least. Give more runs of this model.")
    for part in parts:
        check_classes(part.z, dataset=part.name)
    progress = progress or Quiet()
    pairs = [("transfer", a, b) for a in parts for b in parts if a is not b]
    if len(parts) > 2:
        pairs += [("left-out", join([p for p in parts if p is not b]), b) for b in parts]
    progress.start("transfer", len(pairs))
    learnt_from = [without_entities(train, test) for _, train, test in pairs]
    trained = fit_each([(train, names) for train in learnt_from], progress)
    rows: list[dict[str, Any]] = []
    for (kind, train, test), left, fitted in zip(pairs, learnt_from, trained, strict=True):
        pair = {"model": model, "kind": kind, "train": train.name, "test": test.name}
        rows += [pair | row for row in _transfer_rows(left, test, fitted, seed, resamples)]
    return pd.DataFrame(rows)


def _transfer_rows(
    train: Material, test: Material, fitted: dict[str, Method], seed: int, resamples: int
) -> list[dict[str, Any]]:
    """The rows of one pair; every detector against the best single baseline on the same draws."""
    used = {name: one for name, one in fitted.items() if not one.lacks(test)}
    scores = {name: one.decision_function(test) for name, one in used.items()}
    for name, score in scores.items():
        check_scores(name, score)
    entity = np.array(test.entities)
    value, draws = aurocs(test.z, scores, entity=entity, seed=seed, resamples=resamples)
    rows = []
    for name, one in used.items():
        area = percentile_interval(value[name], draws[name], len(test))
        probability = one.calibration_.probability(scores[name])
        rows.append(
            {"detector": name, "n_train": len(train), "n": area.n, "auroc": area.value,
             "auroc_low": area.low, "auroc_high": area.high, "ece": ece(test.z, probability)}
        )  # fmt: skip
    singles = [name for name, one in used.items() if one.single]
    if not singles:
        return rows
    best = max(singles, key=lambda name: value[name])
    table = pd.DataFrame(rows).assign(**against("best", best, value, draws))
    return table.to_dict("records")


def within_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the detectors' table for folds disjoint by entity, as rows of this one."""
    own: Any = table[table["split"] == "entity"]
    kept = ["model", "detector", "n", "auroc", "auroc_low", "auroc_high", "ece"]
    return own[kept].assign(kind="within", train=own["dataset"], test=own["dataset"])


def without_entities(train: Material, test: Material) -> Material:
    """The training answers about things that the test does not ask about."""
    seen = {entity.casefold() for entity in test.entities}
    keep = np.array([entity.casefold() not in seen for entity in train.entities])
    left = train.take(keep)
    check_classes(left.z, dataset=left.name)
    return left


def check_scores(name: str, score: np.ndarray) -> None:
    """Raise a UserError where a detector gave no number for some answer."""
    if not np.isfinite(score).all():
        raise UserError(
            f"The detector '{name}' gave {int((~np.isfinite(score)).sum())} of {len(score)} "
            "answers no finite score. Leave it out, or collect the states again."
        )
