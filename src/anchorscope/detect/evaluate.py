"""Detectors on answers they never saw: held-out folds, other datasets, and a second model's states.

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

from anchorscope.claims.about_detectors import detector_claims
from anchorscope.detect.kinds import AUTO, METHODS, fit_all, make_method
from anchorscope.detect.material import Material, from_run, join
from anchorscope.detect.method import Method
from anchorscope.detect.tables import (
    aurocs,
    compare_detectors,
    detectors_table,
    enough_resamples,
    write_tables,
)
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.probes.folds import (
    MIN_OVERALL,
    MIN_PER_CLASS,
    SPLITS,
    Split,
    check_classes,
    outer_folds,
)
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView
from anchorscope.stats.intervals import holm, percentile_interval
from anchorscope.stats.ranking import paired_difference

SCORES = (
    "dataset", "split", "detector", "fold", "id", "entity", "z", "score", "probability", "ms",
    "passes", "chosen",
)  # fmt: skip
# Detectors that read a second model's states as well as the model's own, and where.
PEER_POSITIONS = {"probe": "probe position", "question-only": "last question token"}
PEER_COLUMNS = (
    "model", "peer", "dataset", "position", "answers", "n", "wrong",
    "own", "own_low", "own_high", "of_peer", "of_peer_low", "of_peer_high",
    "gap", "gap_low", "gap_high", "p",
)  # fmt: skip


class Trial(NamedTuple):
    """What is learnt from, and what is held out."""

    train: Material
    held: Material
    split: str = "entity"
    fold: int = 0


def evaluate(
    material: Material | Sequence[Material],
    *,
    names: Sequence[str] = (*METHODS, AUTO),
    splits: Sequence[Split] = SPLITS,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Score each answer with each detector, fitted on the folds without it.

    Of several datasets each is evaluated by itself; the folds of all are fitted at once.
    """
    progress = progress or Quiet()
    parts = [material] if isinstance(material, Material) else list(material)
    tests, usable = [], {}
    for part in parts:
        usable[part.name] = _usable(part, names, progress)
        for split in splits:
            fold = outer_folds(part.z, part.entities, split=split, folds=folds, seed=seed)
            # Inner folds of the same kind: a score is judged by what it is to be used for.
            own = replace(part, folds_by=split)
            for n in range(folds):
                tests.append(Trial(own.take(fold != n, seed=seed), own.take(fold == n), split, n))
    progress.start(f"detectors on {', '.join(usable)}", len(tests))
    frames = fit_and_score(tests, [usable[test.held.name] for test in tests], progress)
    return pd.concat(frames, ignore_index=True).reindex(columns=list(SCORES))


def _usable(material: Material, names: Sequence[str], progress: Progress) -> list[str]:
    """The detectors that can be used on the material; a note on those that cannot."""
    check_classes(material.z, dataset=material.name)
    left_out = {name: reason for name in names if (reason := make_method(name).lacks(material))}
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


def fit_and_score(
    tests: Sequence[Trial], names: Sequence[Sequence[str]], progress: Progress
) -> list[pd.DataFrame]:
    """The scores of what each test holds out, a frame each; several tests are fitted at a time."""
    trained = in_parallel(
        lambda work: fit_all(work[0].train, work[1]),
        list(zip(tests, names, strict=True)),
        progress=lambda done, total: progress.advance(),
    )
    # Scored one after the other: the milliseconds are an answer's, not those of its neighbours.
    return [
        pd.concat(
            [
                score_rows(one, name, test.held)
                for name, one in fitted.items()
                if not one.lacks(test.held)
            ],
            ignore_index=True,
        ).assign(split=test.split, fold=test.fold)
        for test, fitted in zip(tests, trained, strict=True)
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
            "surface": held.surfaces,
            # Fits on different folds are put on one scale; a score without a fit has one already.
            "score": method.calibration_.evidence(raw) if method.learns else raw,
            "probability": method.calibration_.probability(raw),
            "ms": each + ms,
            "passes": passes,
            "chosen": method.chosen(),
        }
    )


# --- Transfer ---


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
    tests = [Trial(without_entities(train, held), held, kind) for kind, train, held in pairs]
    singles = {"best": [name for name in names if make_method(name).single]}
    kept = [
        "model", "kind", "train", "test", "detector", "n_train", "n", "auroc", "auroc_low",
        "auroc_high", "ece",
    ]  # fmt: skip
    rows, frames = [], fit_and_score(tests, [names] * len(tests), progress)
    for test, scores in zip(tests, frames, strict=True):
        table = compare_detectors(scores, singles, seed=seed, resamples=resamples)
        against = [column for column in table if str(column).startswith("vs_best")]
        table = table.assign(
            model=model, kind=test.split, train=test.train.name, test=test.held.name,
            n_train=len(test.train),
        )  # fmt: skip
        table = table[[*kept, *against]]
        rows.append(table)
    return pd.concat(rows, ignore_index=True)


def without_entities(train: Material, test: Material) -> Material:
    """The training answers about things that the test does not ask about."""
    seen = {entity.casefold() for entity in test.entities}
    keep = np.array([entity.casefold() not in seen for entity in train.entities])
    left = train.take(keep)
    check_classes(left.z, dataset=left.name)
    return left


# --- A second model's states as a control ---


def peer_table(
    parts: Sequence[Material],
    peers: Sequence[Material],
    *,
    model: str,
    peer: str,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 2000,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row per dataset, position and set of answers: AUROC of either model's probe, and the gap.

    Both probes are trained alike, on the same questions and folds, for the class of the first
    model's answer. What any reader of the question could know (that it is hard, that its subject is
    rare) is in both models' states; what only the first one's hold is the gap. Where one model is
    right and the other wrong ("disagree"), that the question is hard explains nothing.

    Folds are disjoint by entity, entities are drawn, and p is Holm's over the table.
    """
    by_name, rows = {part.name: part for part in peers}, []
    for part in parts:
        own, other, other_z = share(part, by_name.get(part.name))
        sides = {"own": own, "of_peer": other}
        names = [
            n for n in PEER_POSITIONS if not any(make_method(n).lacks(s) for s in (own, other))
        ]
        scores: Any = {
            side: evaluate(
                of_side, names=names, splits=("entity",), folds=folds, seed=seed, progress=progress
            ).set_index(["detector", "id"])["score"]
            for side, of_side in sides.items()
        }
        for name in names:
            held_out = {
                side: table[name].loc[list(own.ids)].to_numpy() for side, table in scores.items()
            }
            for answers, among in (("all", own.z >= 0), ("disagree", own.z != other_z)):
                some = {side: score[among] for side, score in held_out.items()}
                rows.append(
                    {"model": model, "peer": peer, "dataset": own.name,
                     "position": PEER_POSITIONS[name], "answers": answers}
                    | _compare(own.take(among), some, seed, resamples)
                )  # fmt: skip
    table = pd.DataFrame(rows, columns=list(PEER_COLUMNS))
    return table.assign(p=holm(table["p"].tolist()))


def share(own: Material, peer: Material | None) -> tuple[Material, Material, np.ndarray]:
    """Pair the questions that both models answered, with either's states, and the class
    of the second model's own answers; a UserError where they are too few.
    """
    # A file's questions may have changed under the same ids: the texts must be the same too.
    texts = () if peer is None else peer.texts
    place = {(text.id, text.question): n for n, text in enumerate(texts)}
    keys = [(text.id, text.question) for text in own.texts]
    rows = [(n, place[key]) for n, key in enumerate(keys) if key in place]
    z = own.z[[n for n, _ in rows]]
    fewest = min(int((z == 0).sum()), int((z == 1).sum()))
    if peer is None or fewest < MIN_OVERALL:
        raise UserError(
            f"{own.name}: the run and its peer share {len(rows)} answered questions, {fewest} of "
            f"the rarer class; {MIN_OVERALL} of each are needed. Collect the same questions with "
            "both models (the same --data, --limit and --seed)."
        )
    mine, other = (np.array(side) for side in zip(*rows, strict=True))
    first = own.take(mine)
    return first, replace(first, bank=peer.bank, rows=peer.rows[other], memo={}), peer.z[other]


def _compare(
    answers: Material, scores: dict[str, np.ndarray], seed: int, resamples: int
) -> dict[str, Any]:
    """Both AUROCs and their paired difference; no numbers below MIN_PER_CLASS of a class."""
    z = answers.z
    found: dict[str, Any] = {"n": len(z), "wrong": int(z.sum())}
    if min(found["wrong"], found["n"] - found["wrong"]) < MIN_PER_CLASS:
        return found | {"p": np.nan}
    entity = np.array(answers.entities)
    value, draws = aurocs(z, scores, entity=entity, seed=seed, resamples=resamples)
    for side, drawn in draws.items():
        area = percentile_interval(value[side], drawn, len(z))
        found |= {side: value[side], f"{side}_low": area.low, f"{side}_high": area.high}
    gap = paired_difference(value["own"], value["of_peer"], draws["own"] - draws["of_peer"])
    return found | {"gap": gap.value, "gap_low": gap.low, "gap_high": gap.high, "p": gap.p}


# --- All of it, on the runs of a model ---


@dataclass(frozen=True, kw_only=True)
class Study:
    """What an evaluation found."""

    scores: pd.DataFrame  # a row per answer, detector and split
    table: pd.DataFrame  # a row per dataset, split and detector
    transfer: pd.DataFrame | None = None
    peer: pd.DataFrame | None = None  # a row per dataset, position and set of answers

    @property
    def claims(self) -> pd.DataFrame:
        """The published claims about detectors, with a decision each."""
        return detector_claims(self.table)

    def write(self, folder: Path) -> list[Path]:
        """The files written under tables/: detectors.csv, .md, .tex, detector_claims.csv,
        transfer.csv, peer.csv, and the scores.
        """
        tables = {"detectors": self.table}
        if len(self.claims):
            tables["detector_claims"] = self.claims
        optional = {"transfer": self.transfer, "peer": self.peer}
        tables |= {name: table for name, table in optional.items() if table is not None}
        files = write_tables(folder, tables)
        scores = folder / "tables" / "detector_scores.parquet"
        return [*files, write_atomic(scores, self.scores.to_parquet())]


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
    """Every detector on every dataset of these runs; all of them where `names` is empty.

    With a `limit`, as many right as wrong answers of each dataset, that many in all at most.
    `peers` are runs of a second model over the same questions: its states are the control.
    `resamples` is chosen by the number of detectors where it is not given. `keep` gets what was
    found before transfer begins, which takes longest.
    """
    progress = progress or Quiet()
    names = tuple(names) or (*METHODS, AUTO)
    for name in names:
        make_method(name)  # a wrong name is an error before anything slow starts
    resamples = enough_resamples(resamples, len(names))
    folders = _open(runs)
    model = folders[0].model_name
    parts = [from_run(f, name, seed=seed, limit=limit) for f in folders for name in f.datasets]
    datasets = [part.name for part in parts]
    if len(set(datasets)) < len(datasets):
        raise UserError(
            f"Two of the runs have the same dataset ({', '.join(datasets)}). Give each dataset "
            "once."
        )
    peer = None
    if peers:
        others = _open(peers)
        theirs = [from_run(f, name) for f in others for name in f.datasets if name in datasets]
        peer = peer_table(
            parts, theirs, model=model, peer=others[0].model_name, folds=folds, seed=seed,
            resamples=resamples, progress=progress,
        )  # fmt: skip
    scores = evaluate(parts, names=names, folds=folds, seed=seed, progress=progress)
    table = detectors_table(scores, model=model, seed=seed, resamples=resamples)
    found = Study(scores=scores, table=table, peer=peer)
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
    rows = transfer_table(parts, model=model, names=names, seed=seed, progress=progress)
    within: Any = table[table["split"] == "entity"]
    within = within[["model", "detector", "n", "auroc", "auroc_low", "auroc_high", "ece"]].assign(
        kind="within", train=within["dataset"], test=within["dataset"]
    )
    return replace(found, transfer=pd.concat([within, rows], ignore_index=True))


def _open(runs: Sequence[str | Path]) -> list[RunView]:
    """The run folders; a UserError where they are of different models."""
    folders = [RunView.open(run, collected_ok=True) for run in runs]
    if len({folder.weights for folder in folders}) > 1:
        raise UserError(
            "These runs are of different models, and the states of one mean nothing to the other. "
            "Evaluate each model by itself."
        )
    return folders
