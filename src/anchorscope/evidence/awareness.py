"""awareness.csv: can the clean state tell which pathway its sample takes?

A pathway comes from probes that never saw the question, and the classifier of pathways from the
other folds. In strict mode it also learns from the groups of the effect's probe and is scored
against those of the group's probe: what it could rediscover of one probe does not help it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd

from anchorscope.engine.passes import CLEAN, KNOCKOUT, QUESTION_ONLY
from anchorscope.evidence.groups import PREDICTED, Subset, groups_of
from anchorscope.evidence.pieces import Part, Piece, PieceInputs, Tables
from anchorscope.parallel import OnDone, in_parallel
from anchorscope.pathways.grouping import ROLES, pathways, regroup
from anchorscope.probes.at_once import fits_of_layers, side_by_side
from anchorscope.probes.few_columns import cross_fitted
from anchorscope.probes.fold_probes import fold_logits, label_tasks, task_request
from anchorscope.probes.folds import MIN_PER_CLASS
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.many_fits import DEFAULT_C, Made, Request
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Mode
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import StoredStates
from anchorscope.stats.ranking import auroc, auroc_draws, auroc_interval, paired_difference
from anchorscope.stats.whole_rows import finite_rows

SIMPLER = ("signed-logit", "margin", "simple")  # what the state must beat
PREDICTORS = ("state", "signed-logit", "margin", "simple", "question-only")
_OF_STATES = {CLEAN.name: "state", QUESTION_ONLY: "question-only"}  # predictor by pass
MOST = 2000  # questions: more would cost time and move nothing
# Paper mode compares all samples; within ŷ only strict mode can say anything.
ASKED: Mapping[Mode, tuple[Subset, ...]] = {"paper": ("all",), "strict": PREDICTED}
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


def awareness_tables(
    readings: Readings,
    states: Mapping[str, np.ndarray | StoredStates],
    *,
    covariates: Covariates,
    model: str,
    dataset: str,
    C: float = DEFAULT_C,
    grouping: str = "per-layer",
    seed: int = 0,
    resamples: int = RESAMPLES,
    layers: Sequence[int] | None = None,
    fits: Mapping[tuple[str, int], Made] | None = None,
    workers: int | None = None,
    progress: OnDone | None = None,
) -> Tables:
    """awareness.csv, one row per layer, mode, subset and predictor: cross-fitted AUROC of Q
    against A; and awareness_gap.csv: how much higher that of the state is than each simpler one's
    on the same samples, by a paired bootstrap.

    `states` holds "clean" [question, layer, width] and may hold "question-only". `layers` (from
    1; all of them without it) are the ones asked for.
    Predictors: the state, the signed clean logit of
    the effect's probe, its size (margin), both with popularity and length (simple), and the state
    at the last question token. Within a predicted class (strict mode)
    the classifier is trained there too. Intervals are over entities, for the classifiers as they
    were trained: training anew would spread more. `fits` are those of the states' classifiers by
    pass and layer, where somebody has made them already.
    """
    tasks = [_task(readings, mode, grouping) for mode in MODES]
    chosen = _chosen(len(readings.ids), seed)
    entity = np.array(list(readings.entity_by_id.values()))

    def work(layer: int) -> tuple[list[tuple], list[tuple]]:
        records, gaps, k = [], [], layer - 1
        own = {name: (fits or {}).get((name, layer)) for name in _OF_STATES}
        how = {"chosen": chosen, "fold": readings.fold, "C": C, "fits": own}
        scores = _state_scores(tasks, states, layer, **how)
        for task, subset in _asked(tasks):
            rows = chosen & task.rows(subset, layer)
            for name, x in _few_columns(task, covariates, layer).items():
                used = rows & np.isfinite(x).all(axis=1)
                score = cross_fitted(x[used], task.learnt[used, k], readings.fold[used])
                scores[task.mode, subset, name] = _spread(score, used)
            for name in (of for of in PREDICTORS if (task.mode, subset, of) in scores):
                score = scores[task.mode, subset, name]
                read = ~np.isnan(score)
                area = auroc_interval(
                    task.scored[read, k],
                    score[read],
                    seed=seed,
                    resamples=resamples,
                    entity=entity[read],
                )
                records.append((layer, task.mode, subset, name, area.n, *area[:3]))
            own = {name: scores.get((task.mode, subset, name)) for name in PREDICTORS}
            drawn = {"seed": seed, "resamples": resamples, "entity": entity}
            gaps += [(layer, task.mode, subset, *row)
                     for row in _gaps(task.scored[:, k], own, **drawn)]  # fmt: skip
        return records, gaps

    of_layers = in_parallel(
        work, layers or readings.layer_numbers, workers=workers, progress=progress
    )
    tables = {}
    for name, of in zip(("awareness", "awareness_gap"), zip(*of_layers, strict=True), strict=True):
        rows = [(model, dataset, *row) for of_layer in of for row in of_layer]
        tables[name] = pd.DataFrame(rows, columns=list(table_columns.EVIDENCE[name]))
    return tables


def _gaps(
    label: np.ndarray,
    scores: Mapping[str, np.ndarray | None],
    *,
    seed: int,
    resamples: int,
    entity: np.ndarray,
) -> list[tuple]:
    """AUROC of the state less that of each simpler predictor, where both have a score."""
    rows, state = [], scores["state"]
    for name in SIMPLER:
        other = scores[name]
        if state is None or other is None:
            continue
        read = ~np.isnan(state) & ~np.isnan(other)
        z, pair = label[read], [state[read], other[read]]
        draws = auroc_draws(z, pair, seed=seed, resamples=resamples, entity=entity[read])
        gap = paired_difference(auroc(z, pair[0]), auroc(z, pair[1]), draws[0] - draws[1])
        rows.append((name, len(z), gap.value, gap.low, gap.high))
    return rows


def _asked(tasks: Sequence[_Task]) -> list[tuple[_Task, Subset]]:
    return [(task, subset) for task in tasks for subset in ASKED[task.mode]]


def _state_scores(
    tasks: Sequence[_Task],
    states: Mapping[str, np.ndarray | StoredStates],
    layer: int,
    *,
    chosen: np.ndarray,
    fold: np.ndarray,
    C: float,
    fits: Mapping[str, Made | None],
) -> dict[tuple[str, str, str], np.ndarray]:
    """The cross-fitted scores [question] of states, by mode, subset and predictor; NaN: none.

    All modes, subsets and folds learn from the same matrix, at once.
    """
    scores = {}
    for name, predictor in _OF_STATES.items():
        if name not in states:
            continue
        x, used, labels = _learnt(tasks, states[name], layer, chosen)
        how = {"C": C, "least": MIN_PER_CLASS, "fits": fits[name]}
        logits = fold_logits(x, labels, fold[used], **how)
        for (task, subset), own in zip(_asked(tasks), logits, strict=True):
            scores[task.mode, subset, predictor] = _spread(own, used)
    return scores


def _learnt(
    tasks: Sequence[_Task], states: np.ndarray | StoredStates, layer: int, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is learnt from a layer: states, whose [question] bool, labels [task and subset, row]."""
    x = states[:, layer - 1]
    used = chosen & finite_rows(x)
    labels = [
        np.where(task.rows(subset, layer), task.learnt[:, layer - 1], np.nan)[used]
        for task, subset in _asked(tasks)
    ]
    return x[used], used, np.array(labels)


def _spread(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The values of some questions among all of them, [question]; NaN for the others."""
    everywhere = np.full(len(rows), np.nan)
    everywhere[rows] = values
    return everywhere


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


def _few_columns(task: _Task, covariates: Covariates, layer: int) -> dict[str, np.ndarray]:
    """Predictor -> its columns [question, column]: all but the states."""
    logit = task.logit[:, layer - 1]
    return {
        "signed-logit": logit[:, None],
        "margin": np.abs(logit)[:, None],
        "simple": np.column_stack([logit, np.abs(logit), _filled(covariates.columns)]),
    }


def _filled(columns: np.ndarray) -> np.ndarray:
    """Unknown values at the median of the known, so that they say nothing; all unknown: 0."""
    whole = np.where(np.isnan(columns).all(axis=0), 0.0, columns)
    return np.where(np.isnan(whole), np.nanmedian(whole, axis=0), whole)


def _chosen(n: int, seed: int) -> np.ndarray:
    """At most MOST questions, [question] bool."""
    chosen = np.zeros(n, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(n)[:MOST]] = True
    return chosen


def _parts(inputs: PieceInputs) -> list[Part]:
    """A layer each, with what it needs alone: a part is sent to another process."""
    logits = {name: inputs.readings.logits[name] for name in (CLEAN.name, KNOCKOUT.name)}
    readings = replace(inputs.readings, logits=logits)
    states = {name: of for name, of in inputs.states.items() if name in PIECE.loads}
    inputs = replace(inputs, readings=readings, states=states, abstained=None, rows={})
    tasks = [_task(readings, mode, inputs.config.grouping) for mode in MODES]
    asks = [partial(_request, inputs, tasks, name) for name in states]
    made = side_by_side([partial(fits_of_layers, ask, inputs.layers) for ask in asks])
    fits = {
        (name, layer): of
        for name, of_pass in zip(states, made, strict=True)
        for layer, of in of_pass.items()
    }
    return [
        partial(_tables, inputs, layer, {of: fits[of] for of in fits if of[1] == layer})
        for layer in inputs.layers
    ]


def _request(
    inputs: PieceInputs, tasks: Sequence[_Task], name: str, layer: int
) -> tuple[np.ndarray, Request | None]:
    """The states of a pass at a layer, and the fits of its classifiers."""
    chosen = _chosen(len(inputs.readings.ids), inputs.config.seed)
    x, used, labels = _learnt(tasks, inputs.states[name], layer, chosen)
    asked = label_tasks(labels, inputs.readings.fold[used], C=inputs.config.C)
    return x, task_request(asked, len(x), least=MIN_PER_CLASS)


def _tables(inputs: PieceInputs, layer: int, fits: Mapping[tuple[str, int], Made]) -> Tables:
    return awareness_tables(
        inputs.readings,
        inputs.states,
        covariates=inputs.covariates,
        C=inputs.config.C,
        seed=inputs.config.seed,
        resamples=min(inputs.config.resamples, RESAMPLES),
        layers=[layer],
        fits=fits,
        workers=1,
        **inputs.names,
    )


PIECE = Piece(parts=_parts, loads=(CLEAN.name, QUESTION_ONLY))
