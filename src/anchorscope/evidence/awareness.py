"""awareness.csv: predict a sample's pathway from its clean state.

A pathway comes from probes that never saw the question, and the classifier of pathways from the
other folds. In strict mode it also learns from the groups of the effect's probe and is scored
against those of the group's probe: reproducing one probe's errors does not help it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anchorscope.engine.interventions import CLEAN, QUESTION_ONLY
from anchorscope.evidence.pieces import PREDICTED, Part, Piece, PieceInputs, Subset, Tables
from anchorscope.pathways.effects import ROLES, pathways, regroup
from anchorscope.probes.cross_fit import fold_logits
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.records import Mode
from anchorscope.stats.intervals import Draws
from anchorscope.stats.logistic import cross_fitted_logits
from anchorscope.stats.ranking import auroc, auroc_draws, auroc_interval, paired_difference

SIMPLER = ("signed-logit", "margin", "simple")  # what the state must beat
PREDICTORS = ("state", *SIMPLER, "question-only")
_OF_STATES = {CLEAN.name: "state", QUESTION_ONLY: "question-only"}  # predictor by pass
MOST = 2000  # questions: more would cost time and move nothing
# Paper mode compares all samples; within ŷ only strict mode can say anything.
SUBSETS_OF: Mapping[Mode, tuple[Subset, ...]] = {"paper": ("all",), "strict": PREDICTED}
RESAMPLES = 300  # at most, behind each of its many AUROC intervals


class _Task(NamedTuple):
    """The task Q (1.0) against A (0.0) in a mode, subset and layer, [question]; NaN: not in it."""

    mode: Mode
    subset: Subset
    learnt: np.ndarray
    scored: np.ndarray
    logit: np.ndarray  # clean, of the effect's probe


def awareness_tables(inputs: PieceInputs, layer: int) -> Tables:
    """The rows of a layer in awareness.csv and awareness_gap.csv.

    awareness.csv has one row per mode, subset and predictor: cross-fitted AUROC of Q against A.
    awareness_gap.csv has, on the same samples and by a paired bootstrap, the AUROC of the state
    less that of each simpler predictor. Predictors: the state, the signed clean logit of the
    effect's probe, its size (margin), both with popularity and length (simple), and the state at
    the last question token, where the run has it. Within a predicted class (strict mode) the
    classifier is trained there too. Intervals are over entities and take the classifiers as
    fixed: training them again would widen the intervals.
    """
    readings, entity = inputs.readings, inputs.entity
    draws = Draws(seed=inputs.config.seed, resamples=min(inputs.config.resamples, RESAMPLES))
    tasks, records, gaps = _tasks(inputs, layer), [], []
    by_states = _state_scores(inputs, tasks, layer)
    for place, task in enumerate(tasks):
        scores = {name: by_task[place] for name, by_task in by_states.items()}
        for name, x in _few_columns(inputs, task).items():
            used = ~np.isnan(task.scored) & np.isfinite(x).all(axis=1)
            scores[name] = np.full(len(used), np.nan)
            scores[name][used] = cross_fitted(x[used], task.learnt[used], readings.fold[used])
        key = (layer, task.mode, task.subset)
        for name in (name for name in PREDICTORS if name in scores):
            read = ~np.isnan(scores[name])
            drawn = {"seed": draws.seed, "resamples": draws.resamples, "entity": entity[read]}
            area = auroc_interval(task.scored[read], scores[name][read], **drawn)
            records.append((*key, name, area.n, *area[:3]))
        gaps += [(*key, *row) for row in gaps_of_state(task.scored, scores, draws, entity=entity)]
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
    """Cross-fitted scores of label 1 [row] from a few columns x [row, column].

    A single column is only signed towards label 1; several get a logistic model. NaN where the
    other folds hold too few of a class.
    """
    if x.shape[1] > 1:
        return cross_fitted_logits(x, label, fold, least=MIN_PER_CLASS)
    score = np.full(len(x), np.nan)
    for rows in (fold == number for number in np.unique(fold)):
        train, learnt = x[~rows, 0], label[~rows]
        ones, zeros = train[learnt == 1], train[learnt == 0]
        if min(len(ones), len(zeros)) >= MIN_PER_CLASS:
            scaled = (x[rows, 0] - train.mean()) / (train.std() or 1.0)
            score[rows] = scaled * np.sign(ones.mean() - zeros.mean())
    return score


def _tasks(inputs: PieceInputs, layer: int) -> list[_Task]:
    """The tasks of a layer, of at most MOST questions."""
    readings, k, tasks = inputs.readings, layer - 1, []
    chosen = np.zeros(len(readings.ids), dtype=bool)
    chosen[np.random.default_rng(inputs.config.seed).permutation(len(chosen))[:MOST]] = True
    for mode, subsets in SUBSETS_OF.items():
        groups, effect = inputs.groups(mode), ROLES[mode].effect
        own = regroup(pathways(readings, probe=effect), inputs.config.grouping)
        scored = _number(groups.pathway[:, k])
        learnt = np.where(np.isnan(scored), np.nan, _number(own[:, k]))
        for subset in subsets:
            outside = ~(chosen & groups.subset(subset)[:, k])
            labels = [np.where(outside, np.nan, part) for part in (learnt, scored)]
            tasks.append(_Task(mode, subset, *labels, logit=readings.of(effect)[:, k]))
    return tasks


def _number(pathway: np.ndarray) -> np.ndarray:
    return np.where(pathway == "Q", 1.0, np.where(pathway == "A", 0.0, np.nan))


def _state_scores(inputs: PieceInputs, tasks: Sequence[_Task], layer: int) -> dict[str, np.ndarray]:
    """The cross-fitted scores of states by predictor, [task, question]; NaN: none.

    All modes, subsets and folds learn from the same matrix, at once.
    """
    scores, labels = {}, np.array([task.learnt for task in tasks])
    for name, predictor in _OF_STATES.items():
        if name in inputs.states:
            x = inputs.states[name][:, layer - 1]
            used = np.isfinite(x).all(axis=1) & ~np.isnan(labels).all(axis=0)
            fold, C = inputs.readings.fold[used], inputs.config.C
            scores[predictor] = np.full(labels.shape, np.nan)
            found = fold_logits(x[used], labels[:, used], fold, C=C, least=MIN_PER_CLASS)
            scores[predictor][:, used] = found
    return scores


def _few_columns(inputs: PieceInputs, task: _Task) -> dict[str, np.ndarray]:
    """The columns [question, column] of each predictor but the states, by its name.

    Unknown covariates are set to the median of the known ones; to 0 where none is known.
    """
    columns = inputs.covariates.columns
    columns = np.where(np.isnan(columns).all(axis=0), 0.0, columns)
    columns = np.where(np.isnan(columns), np.nanmedian(columns, axis=0), columns)
    simple = np.column_stack([task.logit, np.abs(task.logit), columns])
    return {"signed-logit": simple[:, :1], "margin": simple[:, 1:2], "simple": simple}


def _tables(inputs: PieceInputs) -> list[Part]:
    return [lambda layer=layer: awareness_tables(inputs, layer) for layer in inputs.layers]


PIECE = Piece(tables=_tables, loads=(CLEAN.name, QUESTION_ONLY))
