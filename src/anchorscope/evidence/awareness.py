"""awareness.csv: can the clean state tell which pathway its sample takes?

A pathway comes from probes that never saw the question, and the classifier of pathways from the
other folds. In strict mode it also learns from the groups of the effect's probe and is scored
against those of the group's probe: what it could rediscover of one probe does not help it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anchorscope.engine.passes import CLEAN, KNOCKOUT, QUESTION_ONLY
from anchorscope.evidence.pieces import (
    PREDICTED,
    Part,
    Piece,
    PieceInputs,
    Subset,
    Tables,
    groups_of,
)
from anchorscope.pathways.effects import ROLES, pathways, regroup
from anchorscope.probes.fold_probes import fold_logits
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Mode
from anchorscope.stats.intervals import Draws
from anchorscope.stats.logistic import cross_fitted_logits, standardised
from anchorscope.stats.ranking import auroc, auroc_draws, auroc_interval, paired_difference

SIMPLER = ("signed-logit", "margin", "simple")  # what the state must beat
PREDICTORS = ("state", "signed-logit", "margin", "simple", "question-only")
_OF_STATES = {CLEAN.name: "state", QUESTION_ONLY: "question-only"}  # predictor by pass
MOST = 2000  # questions: more would cost time and move nothing
# Paper mode compares all samples; within ŷ only strict mode can say anything.
SUBSETS_OF: Mapping[Mode, tuple[Subset, ...]] = {"paper": ("all",), "strict": PREDICTED}
RESAMPLES = 300  # at most, behind each of its many AUROC intervals


@dataclass(frozen=True, kw_only=True)
class _Task:
    """The labels of one mode, [question, layer]; NaN where there is no pathway."""

    mode: Mode
    learnt: np.ndarray  # 1.0 = Q
    scored: np.ndarray
    logit: np.ndarray
    subsets: Mapping[str, np.ndarray] = field(repr=False)

    def rows(self, subset: Subset, layer: int) -> np.ndarray:
        """Which questions of a subset have a pathway at layer k, [question] bool."""
        return self.subsets[subset][:, layer - 1] & ~np.isnan(self.scored[:, layer - 1])


def awareness_tables(inputs: PieceInputs, layer: int) -> Tables:
    """The rows of a layer in awareness.csv and awareness_gap.csv.

    awareness.csv has one row per mode, subset and predictor: cross-fitted AUROC of Q against A.
    awareness_gap.csv has, on the same samples and by a paired bootstrap, how much higher that of
    the state is than each simpler one's. Predictors: the state, the signed clean logit of the
    effect's probe, its size (margin), both with popularity and length (simple), and the state at
    the last question token, where the run has it. Within a predicted class (strict mode) the
    classifier is trained there too. Intervals are over entities, for the classifiers as they were
    trained: training them again would spread more.
    """
    readings, entity, k = inputs.readings, inputs.entity, layer - 1
    seed, resamples = inputs.config.seed, min(inputs.config.resamples, RESAMPLES)
    tasks, chosen = _tasks(inputs), _chosen(len(readings.ids), inputs.config.seed)
    scores = _state_scores(inputs, tasks, layer, chosen)
    records, gaps = [], []
    for task, subset in _in_subsets(tasks):
        rows = chosen & task.rows(subset, layer)
        for name, x in _few_columns(inputs, task, layer).items():
            used = rows & np.isfinite(x).all(axis=1)
            score = cross_fitted(x[used], task.learnt[used, k], readings.fold[used])
            scores[task.mode, subset, name] = _spread(score, used)
        keys = {name: (task.mode, subset, name) for name in PREDICTORS}
        own = {name: scores[key] for name, key in keys.items() if key in scores}
        for name, score in own.items():
            read = ~np.isnan(score)
            area = auroc_interval(
                task.scored[read, k],
                score[read],
                seed=seed,
                resamples=resamples,
                entity=entity[read],
            )
            records.append((layer, task.mode, subset, name, area.n, *area[:3]))
        draws = Draws(seed=seed, resamples=resamples)
        rows_of_gaps = gaps_of_state(task.scored[:, k], own, draws, entity=entity)
        gaps += [(layer, task.mode, subset, *row) for row in rows_of_gaps]
    return {
        "awareness": inputs.table("awareness", records),
        "awareness_gap": inputs.table("awareness_gap", gaps),
    }


def gaps_of_state(
    label: np.ndarray, scores: Mapping[str, np.ndarray], draws: Draws, *, entity: np.ndarray
) -> list[tuple]:
    """AUROC of the state less that of each simpler predictor, where both have a score.

    `scores` are by predictor, [question]. A row is predictor, n, gap, low, high.
    """
    rows = []
    for name in SIMPLER:
        if "state" not in scores or name not in scores:
            continue
        state, other = scores["state"], scores[name]
        read = ~np.isnan(state) & ~np.isnan(other)
        z, pair = label[read], [state[read], other[read]]
        drawn = auroc_draws(
            z, pair, seed=draws.seed, resamples=draws.resamples, entity=entity[read]
        )
        gap = paired_difference(auroc(z, pair[0]), auroc(z, pair[1]), drawn[0] - drawn[1])
        rows.append((name, len(z), gap.value, gap.low, gap.high))
    return rows


def cross_fitted(x: np.ndarray, label: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The score of label 1 that each row of a few columns x [row, column] gets from other folds.

    One column needs only the side on which label 1 is, several a logistic model. NaN where the
    other folds hold too few of a class.
    """
    if x.shape[1] > 1:
        return cross_fitted_logits(x, label, fold, least=MIN_PER_CLASS)
    score = np.full(len(x), np.nan)
    for rows in (fold == number for number in np.unique(fold)):
        train, test = standardised(x[~rows], x[rows])
        ones, zeros = (train[label[~rows] == value] for value in (1, 0))
        if min(len(ones), len(zeros)) >= MIN_PER_CLASS:
            score[rows] = test[:, 0] * np.sign(ones.mean() - zeros.mean())
    return score


def _tasks(inputs: PieceInputs) -> list[_Task]:
    return [_task(inputs.readings, mode, inputs.config.grouping) for mode in MODES]


def _task(readings: Readings, mode: Mode, grouping: str) -> _Task:
    groups, effect = groups_of(readings, mode, grouping=grouping), ROLES[mode].effect
    learnt = regroup(pathways(readings, probe=effect), grouping)
    return _Task(
        mode=mode,
        learnt=_number(learnt),
        scored=_number(groups.pathway),
        logit=readings.of(effect),
        subsets={str(name): groups.subset(name) for name in PREDICTED},
    )


def _number(pathway: np.ndarray) -> np.ndarray:
    return np.where(pathway == "Q", 1.0, np.where(pathway == "A", 0.0, np.nan))


def _in_subsets(tasks: Sequence[_Task]) -> list[tuple[_Task, Subset]]:
    return [(task, subset) for task in tasks for subset in SUBSETS_OF[task.mode]]


def _chosen(n: int, seed: int) -> np.ndarray:
    """At most MOST questions, [question] bool."""
    chosen = np.zeros(n, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(n)[:MOST]] = True
    return chosen


def _state_scores(
    inputs: PieceInputs, tasks: Sequence[_Task], layer: int, chosen: np.ndarray
) -> dict[tuple[str, str, str], np.ndarray]:
    """The cross-fitted scores [question] of states, by mode, subset and predictor; NaN: none.

    All modes, subsets and folds learn from the same matrix, at once.
    """
    scores = {}
    for name, predictor in _OF_STATES.items():
        if name not in inputs.states:
            continue
        x = inputs.states[name][:, layer - 1]
        used = chosen & np.isfinite(x).all(axis=1)
        labels = np.array([
            np.where(task.rows(subset, layer), task.learnt[:, layer - 1], np.nan)[used]
            for task, subset in _in_subsets(tasks)
        ])  # fmt: skip
        fold, C = inputs.readings.fold[used], inputs.config.C
        logits = fold_logits(x[used], labels, fold, C=C, least=MIN_PER_CLASS)
        for (task, subset), own in zip(_in_subsets(tasks), logits, strict=True):
            scores[task.mode, subset, predictor] = _spread(own, used)
    return scores


def _spread(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The values of some questions among all of them, [question]; NaN for the others."""
    everywhere = np.full(len(rows), np.nan)
    everywhere[rows] = values
    return everywhere


def _few_columns(inputs: PieceInputs, task: _Task, layer: int) -> dict[str, np.ndarray]:
    """Predictor -> its columns [question, column]: all but the states.

    Unknown covariates are at the median of the known, so that they say nothing; all unknown: 0.
    """
    logit, columns = task.logit[:, layer - 1], inputs.covariates.columns
    columns = np.where(np.isnan(columns).all(axis=0), 0.0, columns)
    columns = np.where(np.isnan(columns), np.nanmedian(columns, axis=0), columns)
    return {
        "signed-logit": logit[:, None],
        "margin": np.abs(logit)[:, None],
        "simple": np.column_stack([logit, np.abs(logit), columns]),
    }


def _parts(inputs: PieceInputs) -> list[Part]:
    """A part for each layer."""
    own = inputs.trimmed(passes=(CLEAN.name, KNOCKOUT.name), states=PIECE.loads)
    return [lambda layer=layer: awareness_tables(own, layer) for layer in inputs.layers]


PIECE = Piece(parts=_parts, loads=(CLEAN.name, QUESTION_ONLY))
