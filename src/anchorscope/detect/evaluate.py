"""Evaluate detectors on held-out folds and on other datasets.

Folds give one row per answer, detector and split. Transfer trains on one dataset and tests on
another, or trains on all but one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from anchorscope.claims.table import detector_claims
from anchorscope.detect.kinds import AUTO, METHODS, fit_all, make_method
from anchorscope.detect.material import PEER, Material, from_run, join, with_peer
from anchorscope.detect.method import Method
from anchorscope.detect.tables import (
    compare_detectors,
    detectors_table,
    write_tables,
)
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.probes.folds import SPLITS, Split, check_classes, outer_folds
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView

SCORES = (
    "dataset", "split", "detector", "fold", "id", "entity", "z", "score", "probability", "ms",
    "passes", "chosen",
)  # fmt: skip


class Trial(NamedTuple):
    """One training set and the test set held out from it."""

    train: Material
    held: Material
    split: str = "entity"
    fold: int = 0


def evaluate(
    parts: Sequence[Material],
    *,
    names: Sequence[str],
    splits: Sequence[Split] = SPLITS,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Score each answer with each detector, fitted on the folds without it.

    Each dataset is evaluated by itself; the folds of all are fitted in parallel.
    """
    progress = progress or Quiet()
    trials, usable = [], {}
    for part in parts:
        usable[part.name] = _usable(part, names, progress)
        for split in splits:
            fold = outer_folds(part.z, part.entities, split=split, folds=folds, seed=seed)
            # Inner folds of the same kind, so that detectors are chosen for this kind of split.
            own = replace(part, folds_by=split)
            for n in range(folds):
                trials.append(Trial(own.take(fold != n, seed=seed), own.take(fold == n), split, n))
    progress.start(f"detectors on {', '.join(usable)}", len(trials))
    frames = fit_and_score(trials, [usable[one.held.name] for one in trials], progress)
    return pd.concat(frames, ignore_index=True).reindex(columns=list(SCORES))


def _usable(material: Material, names: Sequence[str], progress: Progress) -> list[str]:
    """The names of detectors that can use the material; note those that cannot."""
    check_classes(material.z, dataset=material.name)
    usable = []
    for name in names:
        if reason := make_method(name).lacks(material):
            progress.note(f"{material.name}: {name} left out, {reason}")
        else:
            usable.append(name)
    if not usable:
        raise UserError(
            f"None of the detectors can be used on {material.name}: {reason}. Take others, or "
            "answers of `anchorscope detect collect`."
        )
    return usable


def fit_and_score(
    trials: Sequence[Trial], names: Sequence[Sequence[str]], progress: Progress
) -> list[pd.DataFrame]:
    """Fit detectors on each trial in parallel and score what it holds out: a frame per trial."""
    trained = in_parallel(
        lambda work: fit_all(work[0].train, work[1]),
        list(zip(trials, names, strict=True)),
        progress=lambda done, total: progress.advance(),
    )
    # Scored one trial at a time, so that others do not add to the milliseconds.
    return [
        pd.concat(
            [
                score_rows(one, name, trial.held)
                for name, one in fitted.items()
                if not one.lacks(trial.held)
            ],
            ignore_index=True,
        ).assign(split=trial.split, fold=trial.fold)
        for trial, fitted in zip(trials, trained, strict=True)
    ]


def score_rows(method: Method, name: str, held: Material) -> pd.DataFrame:
    """One row per held-out answer: score, probability, and the milliseconds it took."""
    method.decision_function(held)  # reads the states from disk, which is not to be timed
    begun = time.perf_counter()
    raw = method.decision_function(held)
    each = (time.perf_counter() - begun) * 1000 / max(1, len(held))
    if not np.isfinite(raw).all():
        raise UserError(
            f"The detector '{name}' gave {int((~np.isfinite(raw)).sum())} of {len(raw)} "
            "answers no finite score. Leave it out, or collect the states again."
        )
    passes, ms = method.cost(held)
    return pd.DataFrame(
        {
            "dataset": held.name,
            "detector": name,
            "id": held.ids,
            "z": held.z,
            "entity": held.entities,
            # Fits on different folds are put on one scale; a score without a fit has one already.
            "score": method.calibration_.evidence(raw) if method.learns else raw,
            "probability": method.calibration_.probability(raw),
            "ms": each + ms,
            "passes": passes,
            "chosen": method.chosen(),
        }
    )


def transfer_table(
    parts: Sequence[Material],
    *,
    model: str,
    names: Sequence[str],
    seed: int = 0,
    resamples: int = 2000,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Evaluate transfer between datasets: one row per detector, training set and test set.

    AUROC with its interval, ECE, and the paired difference from the best single baseline
    (`vs_best`; Holm's p over the detectors). `kind` is "transfer" (one dataset to another) or
    "left-out" (all others to this one).
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
    trials = [Trial(without_entities(train, held), held, kind) for kind, train, held in pairs]
    singles = {"best": [name for name in names if make_method(name).single]}
    rows, frames = [], fit_and_score(trials, [names] * len(trials), progress)
    for trial, scores in zip(trials, frames, strict=True):
        table = compare_detectors(scores, singles, seed=seed, resamples=resamples).assign(
            model=model, kind=trial.split, train=trial.train.name, test=trial.held.name,
            n_train=len(trial.train),
        )  # fmt: skip
        kept = [
            "model", "kind", "train", "test", "detector", "n_train", "n", "auroc", "auroc_low",
            "auroc_high", "ece", *(name for name in table if str(name).startswith("vs_best")),
        ]  # fmt: skip
        rows.append(table[kept])
    return pd.concat(rows, ignore_index=True)


def without_entities(train: Material, test: Material) -> Material:
    """The training answers without those about entities of the test set."""
    seen = {entity.casefold() for entity in test.entities}
    left = train.take(np.array([entity.casefold() not in seen for entity in train.entities]))
    check_classes(left.z, dataset=left.name)
    return left


# --- The whole evaluation, on the runs of a model ---


@dataclass(frozen=True, kw_only=True)
class Study:
    """The tables of an evaluation: scores, detectors, and transfer."""

    scores: pd.DataFrame  # a row per answer, detector and split
    table: pd.DataFrame  # a row per dataset, split and detector
    transfer: pd.DataFrame | None = None

    @property
    def claims(self) -> pd.DataFrame:
        """The published claims about detectors, with a decision each."""
        return detector_claims(self.table)

    def write(self, folder: Path) -> list[Path]:
        """Write tables/: detectors.csv, detectors.md, detector_claims.csv, transfer.csv, scores."""
        tables = {"detectors": self.table}
        if len(self.claims):
            tables["detector_claims"] = self.claims
        if self.transfer is not None:
            tables["transfer"] = self.transfer
        scores = folder / "tables" / "detector_scores.parquet"
        return [*write_tables(folder, tables), write_atomic(scores, self.scores.to_parquet())]


def study(
    runs: Sequence[str | Path],
    *,
    peers: Sequence[str | Path] = (),
    names: Sequence[str] = (),
    transfer: bool = False,
    limit: int | None = None,
    folds: int = 5,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress | None = None,
    keep: Callable[[Study], object] = lambda found: None,
) -> Study:
    """Evaluate detectors on every dataset of these runs; all detectors if `names` is empty.

    With a `limit`, as many right as wrong answers of each dataset, `limit` in all at most.
    `peers` are runs of a second model over the same questions: its states are a control, and the
    questions that both answered are compared. The default of `resamples` grows with the number of
    detectors. `keep` is called with the results before transfer, which takes longest.
    """
    progress = progress or Quiet()
    names = tuple(names) or (*(name for name in METHODS if name != PEER), AUTO)
    names = tuple(dict.fromkeys((*names, *([PEER] if peers else []))))
    for name in names:
        make_method(name)  # a wrong name is an error before anything slow starts
    folders = _open(runs)
    model = folders[0].model_name
    parts = [from_run(f, name, seed=seed, limit=limit) for f in folders for name in f.datasets]
    datasets = [part.name for part in parts]
    if len(set(datasets)) < len(datasets):
        raise UserError(
            f"Two of the runs have the same dataset ({', '.join(datasets)}). Give each dataset "
            "once."
        )
    if peers:
        others = [from_run(f, name) for f in _open(peers) for name in f.datasets]
        parts = [with_peer(part, others) for part in parts]
    scores = evaluate(parts, names=names, folds=folds, seed=seed, progress=progress)
    table = detectors_table(scores, model=model, seed=seed, resamples=resamples)
    found = Study(scores=scores, table=table)
    if not transfer:
        return found
    keep(found)
    styles = {name: str(f.model.get("prompt")) for f in folders for name in f.datasets}
    if len(set(styles.values())) > 1:
        ways = ", ".join(f"{name} as {style}" for name, style in styles.items())
        progress.note(
            f"questions were asked in different ways ({ways}), and transfer holds that too; "
            "collect all of them with one --prompt"
        )
    names = [name for name in names if name != PEER]
    rows = transfer_table(parts, model=model, names=names, seed=seed, progress=progress)
    within: Any = table[(table["split"] == "entity") & (table["detector"] != PEER)]
    within = within[["model", "detector", "n", "auroc", "auroc_low", "auroc_high", "ece"]].assign(
        kind="within", train=within["dataset"], test=within["dataset"]
    )
    return replace(found, transfer=pd.concat([within, rows], ignore_index=True))


def _open(runs: Sequence[str | Path]) -> list[RunView]:
    """Open the run folders; a UserError if they are of different models."""
    folders = [RunView.open(run, collected_ok=True) for run in runs]
    if len({folder.weights for folder in folders}) > 1:
        raise UserError(
            "These runs are of different models, and the states of one mean nothing to the other. "
            "Evaluate each model by itself."
        )
    return folders
