"""The usable answers of a dataset: class, fold and covariates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anchorscope.config import Config
from anchorscope.probes.folds import check_enough, entity_folds
from anchorscope.records import Sample
from anchorscope.spans.answer import kind_of


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
