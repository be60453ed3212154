"""The usable answers of a dataset: class, fold and covariates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorscope.config import Config
from anchorscope.probes.folds import check_enough, entity_folds
from anchorscope.records import Sample


@dataclass(frozen=True)
class Covariates:
    """What is known of each question beside its states, [question] each."""

    log_popularity: np.ndarray  # powers of ten; NaN where unknown
    prompt_length: np.ndarray  # tokens

    @property
    def columns(self) -> np.ndarray:
        """Both side by side, [question, 2]."""
        return np.column_stack([self.log_popularity, self.prompt_length])

    def take(self, rows: np.ndarray) -> Covariates:
        """Those of some questions."""
        return Covariates(self.log_popularity[rows], self.prompt_length[rows])


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
    """The usable samples of a dataset; an error that counts them where they are too few."""
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
        ),
    )
