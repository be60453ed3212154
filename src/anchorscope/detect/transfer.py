"""Trained on one dataset, used on another; and trained on all but one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.detect.fit import fit_each
from anchorscope.detect.material import Material, join
from anchorscope.detect.method import Method
from anchorscope.detect.methods import AUTO, METHODS
from anchorscope.detect.metrics import check_scores
from anchorscope.detect.splits import check_classes
from anchorscope.errors import UserError
from anchorscope.probes.metrics import auroc_interval
from anchorscope.progress import Progress, Quiet


def transfer_table(
    parts: Sequence[Material],
    *,
    model: str,
    names: Sequence[str] = (*METHODS, AUTO),
    seed: int = 0,
    resamples: int = 1000,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row per detector, training set and test set: AUROC with its interval.

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
    trained = fit_each(learnt_from, names, progress)
    rows: list[dict[str, Any]] = []
    for (kind, train, test), left, fitted in zip(pairs, learnt_from, trained, strict=True):
        of = {"model": model, "kind": kind, "train": train.name, "test": test.name}
        rows += [of | row for row in _one(left, test, fitted, seed, resamples)]
    return pd.DataFrame(rows)


def _one(
    train: Material, test: Material, fitted: dict[str, Method], seed: int, resamples: int
) -> list[dict[str, Any]]:
    rows = []
    for name, method in fitted.items():
        if method.lacks(test):
            continue
        score = method.decision_function(test)
        check_scores(name, score)
        found = auroc_interval(test.z, score, seed=seed, resamples=resamples)
        rows.append(
            {"detector": name, "n_train": len(train), "n": found.n, "auroc": found.value,
             "auroc_low": found.low, "auroc_high": found.high}
        )  # fmt: skip
    return rows


def within_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the detectors' table for folds disjoint by entity, as rows of this one."""
    own: Any = table[table["split"] == "entity"]
    kept = ["model", "detector", "n", "auroc", "auroc_low", "auroc_high"]
    return own[kept].assign(kind="within", train=own["dataset"], test=own["dataset"])


def without_entities(train: Material, test: Material) -> Material:
    """The training answers about things that the test does not ask about."""
    seen = {entity.casefold() for entity in test.entities}
    keep = np.array([entity.casefold() not in seen for entity in train.entities])
    left = train.take(keep)
    check_classes(left.z, dataset=left.name)
    return left
