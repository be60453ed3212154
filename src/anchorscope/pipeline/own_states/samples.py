"""The samples behind own states: what is known of each, and the rest left empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorscope.answers.kind import kind_of_answer
from anchorscope.config import Config
from anchorscope.datasets.text import digest
from anchorscope.pipeline.own_states.arrays import StoredArray
from anchorscope.pipeline.own_states.check import FACTS
from anchorscope.probes.labelled import Covariates, Labelled, in_folds
from anchorscope.records import Answer, Question, Sample, Span

_MISSING = {"", "nan", "None"}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of each sample used, [sample] each; None where a fact was not given."""

    rows: np.ndarray  # which of the samples given are used, in their order
    id: list[str]
    z: np.ndarray
    known: Mapping[str, list[Any] | None]

    def text(self, name: str) -> list[str]:
        """A fact as text, "" where it is missing."""
        values = self.known[name] or [""] * len(self.id)
        return ["" if str(value) in _MISSING else str(value) for value in values]

    def number(self, name: str) -> np.ndarray:
        """A fact as numbers, NaN where it is missing."""
        values = self.known[name]
        return np.full(len(self.id), np.nan) if values is None else np.array(values, dtype=float)


def facts_of(
    arrays: Mapping[str, StoredArray], *, dataset: str, limit: int | None, seed: int
) -> Facts:
    """The facts of the samples used: all, or those of the smallest hash of seed and id."""
    n = arrays["clean"].shape[0]
    known = {name: arrays[name].values() if name in arrays else None for name in FACTS}
    ids = [f"{dataset}:own:{id}" for id in known["id"] or range(n)]
    ranked = sorted(range(n), key=lambda row: (digest(seed, ids[row]), ids[row]))
    rows = np.array(sorted(ranked[:limit]))
    z = np.array(arrays["z"].values(), dtype=np.int64)[rows]
    used = {k: None if v is None else [v[row] for row in rows] for k, v in known.items()}
    return Facts(rows=rows, id=[ids[row] for row in rows], z=z, known=used)


def labelled_facts(facts: Facts, *, dataset: str, config: Config) -> Labelled:
    """Class, fold and covariates of the samples; a sample without an entity has its own."""
    entity = [name or id for name, id in zip(facts.text("entity"), facts.id, strict=True)]
    length, popularity = facts.number("length"), facts.number("popularity")
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.log10(np.where(popularity > 0, popularity, np.nan))
    covariates = Covariates(
        log_popularity=powers,
        prompt_length=np.zeros(len(length)) if np.isnan(length).all() else length,
        relation=_texts(facts, "relation"),
        kind=np.array(_kinds(facts)) if any(_kinds(facts)) else None,
        exact_tokens=None if facts.known["exact_tokens"] is None else facts.number("exact_tokens"),
        entity=np.array(entity),
    )
    return in_folds(dataset=dataset, ids=facts.id, z=facts.z, covariates=covariates, config=config)


def samples_of(facts: Facts, *, dataset: str, entities: Sequence[str]) -> list[Sample]:
    """A row of samples.parquet for each; a question without text is shown by its id."""
    asked = [text or id for text, id in zip(facts.text("question"), facts.id, strict=True)]
    popularity = facts.number("popularity")
    columns = (facts.id, asked, facts.text("answer"), facts.text("relation"), _kinds(facts))
    return [
        Sample(
            question=Question(
                id=id,
                dataset=dataset,
                text=text,
                answers=(),
                relation=relation or None,
                popularity=None if np.isnan(popularity[row]) else float(popularity[row]),
                entity=entities[row],
            ),
            answer=Answer(
                id=id, text=said, token_ids=(), log_probs=(), first_entropy=np.nan, finished=True
            ),
            verdict="wrong" if facts.z[row] else "right",
            finder="own states",
            spans=(),
            answer_span=Span(0, len(said)) if said else None,
            # Places that stand for tokens nobody knows: they only say that the sample is usable.
            prompt_ids=(0, 1),
            question_tokens=(1,),
            exact_question=(1,),
            exact_answer=(2,),
            kind=kind,
        )
        for row, (id, text, said, relation, kind) in enumerate(zip(*columns, strict=True))
    ]


def _kinds(facts: Facts) -> list[str]:
    """The kind of each answer: as given, else by the form of its text, else unknown ("")."""
    if facts.known["kind"] is not None:
        return facts.text("kind")
    return [kind_of_answer(said) if said else "" for said in facts.text("answer")]


def _texts(facts: Facts, name: str) -> np.ndarray | None:
    return None if facts.known[name] is None else np.array(facts.text(name))
