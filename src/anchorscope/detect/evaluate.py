"""Every detector on answers it never saw: one row per answer, detector and split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from anchorscope.detect.auto import Auto
from anchorscope.detect.fit import fit_each, fit_reasons
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.detect.methods import AUTO, METHODS
from anchorscope.detect.metrics import check_scores
from anchorscope.detect.splits import SPLITS, Split, check_classes, outer_folds
from anchorscope.errors import UserError
from anchorscope.progress import Progress, Quiet

SCORES = (
    "dataset", "split", "detector", "fold", "id", "z", "score", "probability", "ms", "chosen",
)  # fmt: skip


def evaluate(
    material: Material,
    *,
    names: Sequence[str] = (*METHODS, AUTO),
    splits: Sequence[Split] = SPLITS,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """SCORES of each answer by each detector, from a fit on folds without it."""
    progress = progress or Quiet()
    check_classes(material.z, dataset=material.name)
    progress.start(f"detectors on {material.name}", folds * len(splits))
    left_out = fit_reasons(material, names)
    for name, reason in left_out.items():
        progress.note(f"{material.name}: {name} left out, {reason}")
    names = [name for name in names if name not in left_out]
    tests = [test for split in splits for test in _tests(material, split, folds, seed)]
    trained = fit_each([test.train for test in tests], names, progress)
    # Scored one after the other: the milliseconds are an answer's, not those of its neighbours.
    frames = [
        rows_of(one, name, test.held).assign(split=test.split, fold=test.fold)
        for test, fitted in zip(tests, trained, strict=True)
        for name, one in fitted.items()
    ]
    return pd.concat(frames, ignore_index=True).reindex(columns=list(SCORES))


class _Test(NamedTuple):
    """One fold: what is learnt from, and what is held out."""

    split: Split
    fold: int
    train: Material
    held: Material


def _tests(material: Material, split: Split, folds: int, seed: int) -> list[_Test]:
    fold = outer_folds(material.z, material.entities, split=split, folds=folds, seed=seed)
    # Inner folds of the same kind: a score is judged by what it is to be used for.
    given = replace(material, mixed=split == "random")
    return [
        _Test(split, number, given.take(fold != number, seed=seed), given.take(fold == number))
        for number in range(folds)
    ]


def rows_of(method: Method, name: str, test: Material) -> pd.DataFrame:
    """One row per test answer: score, probability, and the milliseconds it took."""
    method.decision_function(test)  # reads the states from disk, which is not to be timed
    begun = time.perf_counter()
    raw = method.decision_function(test)
    each = (time.perf_counter() - begun) * 1000 / max(1, len(test))
    check_scores(name, raw)
    return pd.DataFrame(
        {
            "dataset": test.name,
            "detector": name,
            "id": test.ids,
            "z": test.z,
            # Fits on different folds are put on one scale; a score without a fit has one already.
            "score": method.calibration_.evidence(raw) if method.learns else raw,
            "probability": method.calibration_.probability(raw),
            "ms": each,
            "chosen": chosen_by(method),
        }
    )


def chosen_by(method: Method) -> str:
    """What the training answers chose, in words: "layer 17, C 0.003"."""
    if isinstance(method, Auto):
        return method.best_.name
    about = method.about()
    kept = {key: about[key] for key in ("layer", "layers", "C", "alpha", "beta") if key in about}
    return ", ".join(f"{key} {value}" for key, value in kept.items())


def check_same_model(weights: Sequence[str]) -> None:
    """Raise a UserError where runs of different models are put together."""
    if len(set(weights)) > 1:
        raise UserError(
            "These runs are of different models, and the states of one mean nothing to the other. "
            "Evaluate each model by itself."
        )
