"""The data that detectors read: answers, token probabilities and states of each question.

The same `Material` comes from a run folder to train and evaluate detectors, and from new answers
to score them, so that a detector is used exactly as it was evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from anchorscope.errors import UserError
from anchorscope.probes.folds import MIN_PER_CLASS, entity_folds, random_folds
from anchorscope.records import Sample
from anchorscope.run_folder.states import StateBank, require_whole_states
from anchorscope.run_folder.view import RunView

INNER_FOLDS = 3
PEER = "peer"  # the states of a second model over the same questions
FoldsBy = Literal["entity", "random", "dataset"]
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class SampledAnswers:
    """Several sampled answers to one question, and the cost of sampling them."""

    texts: tuple[str, ...]
    temperature: float = 1.0
    passes: int = 0  # forward passes of single rows, all answers together
    ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Text:
    """One answered question, without its states."""

    id: str
    question: str
    answer: str
    log_probs: tuple[float, ...]  # of each answer token
    exact_answer: tuple[int, ...]  # E_A, counted from the answer's first token
    first_entropy: float
    dataset: str = ""
    entity: str = ""
    popularity: float = np.nan  # log10
    p_true: float = np.nan
    entropies: tuple[float, ...] = ()  # of each answer token's distribution; none: not kept
    sampled: SampledAnswers | None = None  # other answers to the question


class Arrays:
    """States [question, width] in memory, by intervention and layer (from 1)."""

    def __init__(self, states: dict[tuple[str, int], np.ndarray], *, layers: int) -> None:
        self._states, self.layers = states, layers
        self.names = frozenset(name for name, _ in states)

    def layer(self, name: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer."""
        return self._states[name, layer]


class _Joined:
    """The states of several materials as one bank."""

    def __init__(self, parts: Sequence[Material]) -> None:
        self._parts, self.layers = parts, parts[0].bank.layers
        self.names: frozenset[str] = frozenset.intersection(*(part.bank.names for part in parts))

    def layer(self, name: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer."""
        return np.concatenate([part.layer(name, layer) for part in self._parts])


@dataclass(frozen=True, kw_only=True)
class Material:
    """The usable answers of one dataset (or several), with class, texts and states."""

    name: str  # the dataset, or several joined by "+"
    texts: tuple[Text, ...]
    z: np.ndarray  # [question], 1 = wrong, 0 = right, -1 = not known
    bank: StateBank | Arrays | _Joined  # states of many questions, read a layer at a time
    rows: np.ndarray  # [question], the row of each question in the bank
    seed: int = 0
    folds_by: FoldsBy = "entity"  # what no two inner folds share; "random": nothing
    peer: Material | None = None  # the same questions, answered and read by a second model
    # Cache of results that several detectors need of the same training answers.
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(text.id for text in self.texts)

    @property
    def entities(self) -> tuple[str, ...]:
        return tuple(text.entity for text in self.texts)

    def has(self, states: str) -> bool:
        """Whether there are states of this intervention, or of a peer."""
        return states in self.bank.names or (states == PEER and self.peer is not None)

    def layers(self, states: str) -> int:
        """The number of layers of the model that these states come from."""
        return (self.peer if self.peer and states == PEER else self).bank.layers

    def layer(self, states: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer (from 1), float32; NaN where there is none."""
        if self.peer is not None and states == PEER:
            return self.peer.layer("clean", layer)
        return self.bank.layer(states, layer)[self.rows].astype(np.float32, copy=False)

    def take(self, rows: np.ndarray, *, seed: int | None = None) -> Material:
        """Select questions by a mask or by row numbers; the memo starts empty."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(
            self,
            texts=tuple(self.texts[n] for n in numbers),
            z=self.z[numbers],
            rows=self.rows[numbers],
            seed=self.seed if seed is None else seed,
            peer=self.peer and self.peer.take(numbers),
            memo={},
        )

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Call `make` once and cache its result under the key."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    @cached_property
    def inner(self) -> np.ndarray:
        """The inner fold of every question, [question]: as the outer folds, or one per dataset."""
        if self.folds_by == "random":
            return random_folds(self.z, folds=INNER_FOLDS, seed=self.seed + 7919)
        names, number = np.unique([text.dataset for text in self.texts], return_inverse=True)
        if self.folds_by == "dataset" and len(names) > 1:
            return number
        return entity_folds(self.entities, folds=INNER_FOLDS, seed=self.seed + 7919)

    def inner_parts(self) -> list[tuple[np.ndarray, Material, Material]]:
        """For each inner fold: its mask, the training material, and the held-out material."""

        def part(fold: int) -> tuple[np.ndarray, Material, Material]:
            held = self.inner == fold
            # Another seed inside: with the same one a fold of the rest would be empty.
            return held, self.take(~held, seed=self.seed + 1 + fold), self.take(held)

        return self.once("parts", lambda: [part(int(fold)) for fold in np.unique(self.inner)])

    def apart(self) -> Material:
        """The same answers with a whole dataset in each inner fold.

        Itself if there is one dataset, or if leaving one out leaves too few answers of a class.
        """
        datasets = np.array([text.dataset for text in self.texts])
        names = np.unique(datasets)
        others = [self.z[datasets != name] for name in names]
        fewest = min(np.sum(z == which) for z in others for which in (0, 1))
        if len(names) < 2 or fewest < MIN_PER_CLASS:
            return self
        return self.once("apart", lambda: replace(self, folds_by="dataset", memo={}))


def join(parts: Sequence[Material]) -> Material:
    """Concatenate several materials of one model."""
    if len(parts) == 1:
        return parts[0]
    return Material(
        name="+".join(part.name for part in parts),
        texts=tuple(text for part in parts for text in part.texts),
        z=np.concatenate([part.z for part in parts]),
        bank=_Joined(parts),
        rows=np.arange(sum(len(part) for part in parts)),
        seed=parts[0].seed,
    )


def with_peer(own: Material, peers: Sequence[Material]) -> Material:
    """Keep the questions that a second model answered too, with its material as `peer`."""
    peer = next((part for part in peers if part.name == own.name), own.take(np.arange(0)))
    # A file's questions may have changed under the same ids: the texts must be the same too.
    place = {(text.id, text.question): n for n, text in enumerate(peer.texts)}
    keys = [(text.id, text.question) for text in own.texts]
    pairs = [(n, place[key]) for n, key in enumerate(keys) if key in place]
    if not pairs:
        raise UserError(
            f"{own.name}: the run and its peer share no answered question. Collect the same "
            "questions with both models (the same --data, --limit and --seed)."
        )
    mine, others = np.array(pairs).T
    return replace(own.take(mine), peer=peer.take(others))


def from_run(run: RunView, dataset: str, *, seed: int = 0, limit: int | None = None) -> Material:
    """The usable answers of one dataset of a run, with states and sampled answers.

    With a `limit`, as many right as wrong ones, `limit` in all at most.
    """
    if "states" in run.info.get("identity", {}):
        raise UserError(
            f"'{run.path}' was made from states alone. Detectors read answers too: give "
            "them a folder of `anchorscope run` or `anchorscope detect collect`."
        )
    used = [s for s in run.answers if s.question.dataset == dataset and s.usable]
    if not used:
        raise UserError(f"'{run.path}' has no usable answers of '{dataset}'.")
    if limit is not None:
        used = balanced(used, limit, seed)
    require_whole_states(run.path)
    groups: Any = run.sampled.sort_values("number").groupby("id", sort=False)
    temperature = float(run.info.get("sampled", {}).get("temperature", 1.0))
    sampled = {
        str(id): SampledAnswers(
            texts=tuple(map(str, own["text"])),
            temperature=temperature,
            passes=int(own["passes"].sum()),
            ms=float(own["ms"].sum()),
        )
        for id, own in groups
    }
    texts = tuple(
        Text(
            id=s.id,
            question=s.question.text,
            answer=s.answer.text,
            log_probs=s.answer.log_probs,
            exact_answer=tuple(token - len(s.prompt_ids) for token in s.exact_answer),
            first_entropy=s.answer.first_entropy,
            dataset=dataset,
            entity=s.question.entity,
            popularity=s.question.log_popularity,
            p_true=run.p_true.get(s.id, np.nan),
            entropies=s.answer.entropies,
            sampled=sampled.get(s.id),
        )
        for s in used
    )
    return Material(
        name=dataset,
        texts=texts,
        z=np.array([int(s.verdict == "wrong") for s in used], dtype=np.int64),
        bank=StateBank(run.path, [s.id for s in used]),
        rows=np.arange(len(used)),
        seed=seed,
    )


def balanced(samples: list[Sample], limit: int, seed: int) -> list[Sample]:
    """Draw as many right as wrong answers, `limit` in all at most, and keep their order."""
    rng = np.random.default_rng(seed)
    wrong = np.array([sample.verdict == "wrong" for sample in samples])
    classes = [rng.permutation(np.flatnonzero(wrong == which)) for which in (False, True)]
    each = min(limit // 2, *map(len, classes))
    return [samples[n] for n in np.sort(np.concatenate([rows[:each] for rows in classes]))]
