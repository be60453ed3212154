"""The usable answers of a dataset, their folds, and the questions each probe is trained on.

Folds are disjoint by entity, or random.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.errors import UserError, unknown
from anchorscope.records import Sample
from anchorscope.run_folder.table_columns import ProbeName
from anchorscope.spans.answer import kind_of

PROBES: tuple[ProbeName, ...] = get_args(ProbeName)
# Fewest answers of each class in the training part of any probe. Below this the weights are
# decided by single questions. Overall four times as many are asked for, so that probes "a"
# and "b" (about two fifths of the questions each) have a margin above it.
MIN_PER_CLASS = 5
MIN_OVERALL = 4 * MIN_PER_CLASS
# Parts of a probe's training questions that calibrate it, each held out in turn. A probe of fewer
# questions is surer than it should be: with 3 parts the slope of Platt's line comes out at 0.67 to
# 0.94 of the one that is right on 20,000 new questions, with 5 at 0.73 to 0.93, with 10 no better
# (made-up states of width 576, 400 and 800 questions, 16 worlds each).
INNER_FOLDS = 5
Split = Literal["random", "entity"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Covariates:
    """Properties of each question beside its states, [question] each."""

    log_popularity: np.ndarray  # powers of ten; NaN where unknown
    prompt_length: np.ndarray  # tokens
    relation: np.ndarray | None = None  # text, "" where unknown; None: nothing is known
    kind: np.ndarray | None = None  # kind of answer, text
    exact_tokens: np.ndarray | None = None  # how many tokens E_Q has
    entity: np.ndarray | None = None  # text; None: every question is about something else

    @property
    def columns(self) -> np.ndarray:
        """Popularity and length side by side, [question, 2]."""
        return np.column_stack([self.log_popularity, self.prompt_length])

    def take(self, rows: np.ndarray) -> Covariates:
        """The covariates of some questions."""
        return replace(self, **{k: v[rows] for k, v in vars(self).items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The samples of one dataset that probes may use, with class and fold."""

    dataset: str
    ids: tuple[str, ...]
    z: np.ndarray  # [question], 1 = wrong
    fold: np.ndarray  # [question]
    entities: tuple[str, ...]
    covariates: Covariates


def labelled(samples: Sequence[Sample], dataset: str, config: Config) -> Labelled:
    """The usable samples of a dataset, in folds that keep each entity together.

    Raises a UserError with their counts where they are too few.
    """
    used = [s for s in samples if s.question.dataset == dataset and s.usable]
    z = np.array([int(s.verdict == "wrong") for s in used], dtype=np.int64)
    entities = tuple(s.question.entity for s in used)
    fold = entity_folds(entities, folds=config.folds, seed=config.seed)
    check_enough(z, fold, dataset=dataset)
    return Labelled(
        dataset=dataset,
        ids=tuple(s.id for s in used),
        z=z,
        fold=fold,
        entities=entities,
        covariates=Covariates(
            log_popularity=np.array([s.question.log_popularity for s in used]),
            prompt_length=np.array([float(len(s.prompt_ids)) for s in used]),
            relation=np.array([s.question.relation or "" for s in used]),
            kind=np.array([kind_of(s) for s in used]),
            exact_tokens=np.array([float(len(s.exact_question)) for s in used]),
            entity=np.array(entities),
        ),
    )


def labelled_by_facts(
    samples: Sequence[Sample], facts: pd.DataFrame, dataset: str, config: Config
) -> Labelled:
    """Add class, fold and covariates to the samples; facts that the file lacks are left out."""
    answers, length = labelled(samples, dataset, config), facts["length"].to_numpy()
    exact, kinds = facts["exact_tokens"].to_numpy(), facts["kind"].to_numpy(str)
    relations = facts["relation"].to_numpy(str)
    covariates = replace(
        answers.covariates,
        prompt_length=np.zeros(len(length)) if np.isnan(length).all() else length,
        relation=relations if any(relations) else None,
        kind=kinds if any(kinds) else None,
        exact_tokens=None if np.isnan(exact).all() else exact,
    )
    return replace(answers, covariates=covariates)


def entity_folds(entities: Sequence[str], *, folds: int = 5, seed: int = 0) -> np.ndarray:
    """The fold of every question, [question] int, all questions of one entity in one fold.

    A fold is the hash of (seed, entity), so questions added later move no earlier one. The one
    exception: with a handful of entities a fold may come out empty, and is then filled from the
    fullest. scikit-learn's GroupKFold makes folds of more equal size, but 100 questions added to
    1,000 move 800 of them (740 with shuffle).
    """
    if folds < 3:
        raise UserError(
            f"{folds} folds were asked for; at least 3 are needed: "
            "one to read, and one each for two probes that share no question."
        )
    if blank := sum(not entity for entity in entities):
        raise UserError(
            f"{blank} of {len(entities)} questions name no entity. "
            "Give each the thing it asks about, or its own id where nothing is known."
        )
    hashes = {entity: _hash(entity, seed) for entity in set(entities)}
    if len(hashes) < folds:
        raise UserError(
            f"The questions are about {len(hashes)} entities, fewer than the {folds} folds. "
            "Ask about more entities or use fewer folds."
        )
    home = {entity: value % folds for entity, value in hashes.items()}
    _fill_empty(home, hashes, folds)
    return np.array([home[entity] for entity in entities], dtype=np.int64)


def folds_like(
    entities: Sequence[str], known: Mapping[str, int], *, folds: int, seed: int
) -> np.ndarray:
    """The folds of further questions, [question] int: `known` by entity, by hash for the others."""
    numbers = [known.get(entity, _hash(entity, seed) % folds) for entity in entities]
    return np.array(numbers, dtype=np.int64)


def inner_folds(entities: Sequence[str]) -> np.ndarray:
    """The inner fold of each question, for calibration, [question] int, 0 to INNER_FOLDS - 1.

    All questions of one entity are in one inner fold, whatever the outer folds and their seed.
    """
    part = {entity: _hash(entity, "inner") % INNER_FOLDS for entity in set(entities)}
    return np.array([part[entity] for entity in entities], dtype=np.int64)


def training_rows(fold: np.ndarray, *, held_out: int, probe: ProbeName) -> np.ndarray:
    """The questions that `probe` of fold `held_out` learns from, [question] bool.

    "paper" takes all other folds; "a" and "b" take disjoint halves of them, counted in a
    circle from the fold held out, so that every fold serves both as the folds rotate.
    """
    folds = int(fold.max()) + 1
    others = (held_out + np.arange(1, folds)) % folds
    half = len(others) // 2
    part = {"paper": others, "a": others[:half], "b": others[half:]}[probe]
    return np.isin(fold, part)


def check_classes(z: np.ndarray, *, dataset: str, needs: str = "a detector needs") -> None:
    """Raise a UserError where there are too few right or wrong answers to learn from."""
    wrong, right = int(np.sum(z == 1)), int(np.sum(z == 0))
    if min(wrong, right) < MIN_OVERALL:
        raise UserError(
            f"{dataset}: {wrong} wrong and {right} right answers can be used; {needs} at least "
            f"{MIN_OVERALL} of each. Ask more questions, or use data that this model gets right "
            "less or more often."
        )


def check_enough(z: np.ndarray, fold: np.ndarray, *, dataset: str = "The data") -> None:
    """Raise a UserError where some probe would have too few right or wrong answers."""
    check_classes(z, dataset=dataset, needs="probes need")
    folds = int(fold.max()) + 1
    for held_out, probe in itertools.product(range(folds), PROBES):
        part = z[training_rows(fold, held_out=held_out, probe=probe)]
        if (fewest := int(min(np.sum(part == 0), np.sum(part == 1)))) < MIN_PER_CLASS:
            raise UserError(
                f"{dataset}: {np.sum(z == 1)} wrong and {np.sum(z == 0)} right answers can be "
                f"used, but one of the {folds} folds leaves a probe only {fewest} of a class to "
                f"learn from; it needs {MIN_PER_CLASS}. Ask more questions, or use data that this "
                "model gets right less or more often."
            )


def _hash(entity: str, seed: int | str) -> int:
    digest = hashlib.blake2b(f"{seed}:{entity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _fill_empty(home: dict[str, int], hashes: dict[str, int], folds: int) -> None:
    members = {fold: sorted(e for e in home if home[e] == fold) for fold in range(folds)}
    for fold in range(folds):
        if not members[fold]:
            fullest = max(members, key=lambda other: len(members[other]))
            # Chosen by hash, not by place: the order of the questions does not matter.
            moved = max(members[fullest], key=lambda entity: hashes[entity])
            members[fullest].remove(moved)
            members[fold].append(moved)
            home[moved] = fold


def outer_folds(
    z: np.ndarray, entities: Sequence[str], *, split: Split, folds: int, seed: int
) -> np.ndarray:
    """The fold that tests each question, [question] int."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split == "random":
        return random_folds(z, folds=folds, seed=seed)
    return entity_folds(entities, folds=folds, seed=seed)


def random_folds(z: np.ndarray, *, folds: int, seed: int) -> np.ndarray:
    """Random folds with similar shares of wrong answers, [question] int, ignoring entities."""
    from sklearn.model_selection import StratifiedKFold  # slow to import, and a run has others

    fold = np.zeros(len(z), dtype=np.int64)
    splitter = StratifiedKFold(n_splits=folds, shuffle=True, random_state=seed)
    for number, (_, held) in enumerate(splitter.split(z, z)):
        fold[held] = number
    return fold
