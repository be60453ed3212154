"""Generate answers, or read given ones in one pass, with their clean states."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anchorscope.answers.generate import Answerer
from anchorscope.answers.given import unread_answer
from anchorscope.detect.answer_parts import (
    LocatedAnswer,
    SingleEntity,
    locate_answer,
    locate_single,
)
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.check.states import read_states_file, read_tensors, states_files
from anchorscope.engine.decode import (
    OnToken,
    Prefix,
    Sampling,
    Step,
    grow_trunk,
    states_bytes,
)
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_given
from anchorscope.engine.transfer import to_host
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.records import Answer

PrefixOf = Callable[[Lease], Prefix]  # tokens that most prompts begin with, read once


@dataclass(frozen=True, kw_only=True)
class AnswerBatch:
    """A batch of answers, with the states at the last token of each of their entities."""

    numbers: list[int]  # which of the tasks they belong to
    answers: list[LocatedAnswer]
    clean: np.ndarray  # [entity, layer, width], of all answers one after the other


@dataclass(frozen=True, kw_only=True)
class Task:
    """A prompt to answer, or a prompt with a given answer as text and tokens."""

    number: int
    question: str
    prompt_ids: tuple[int, ...]
    answer: str | None = None
    answer_ids: tuple[int, ...] = ()
    every: bool = False  # read every entity, not only the one that a run reads
    single: SingleEntity | None = None  # what `answer` is read for


def read_answers(
    answerer: Answerer,
    prefix_of: PrefixOf,
    tasks: Sequence[Task],
    *,
    token_log_probs: bool = False,
    on_token: OnToken | None = None,
) -> Iterator[AnswerBatch]:
    """Generate or read the answer of each task with its states, a batch at a time.

    With `token_log_probs` given answers have the log-probability of every token too; the model's
    own always have it. `on_token` is called with each token that the model writes; its rows are the
    tasks' numbers.
    """
    model = answerer.model
    require_understood(model)
    budget = Budget.of(model)
    states = states_bytes(model, answerer.max_tokens)
    rows = Prefix((), None).rows_within(budget.written, room=0, beside=states)
    with Lease(model) as lease:

        def work(batch: list[Task]) -> AnswerBatch:
            prefix = fitting(prefix_of(lease), [task.prompt_ids for task in batch])
            if batch[0].answer is None:
                located, clean = _write(lease, answerer, prefix, batch, on_token)
            else:
                located, clean = _read(lease, prefix, batch, token_log_probs)
            numbers = [task.number for task in batch]
            return AnswerBatch(numbers=numbers, answers=located, clean=on_host(clean))

        for written in (False, True):
            for _, batch in in_batches(
                [task for task in tasks if (task.answer is None) == written],
                work,
                length=lambda task: len(task.prompt_ids) + len(task.answer_ids),
                then=lambda task: task.number,
                budget=budget,
                rows=rows if written else None,
            ):
                yield batch


class StatesFolder:
    """States that another program wrote, a file an answer, found by the tokens of its prompt.

    The files are those of vLLM's hidden-states connector: `token_ids` of prompt and answer, which
    may lack the last one, and `hidden_states` [token, layer, width] after every block.
    """

    def __init__(self, folder: str | Path, model: Model) -> None:
        self.model = model
        self._files = {
            file: tuple(read_tensors(file, "token_ids")[0].flatten().tolist())
            for file in states_files(folder)
        }

    def read(self, tasks: Sequence[Task]) -> Iterator[AnswerBatch]:
        """The answers whose tokens are in a file, one a batch; no log-probabilities are known."""
        prompts = {task.prompt_ids for task in tasks}
        answers: dict[tuple[int, ...], list[tuple[tuple[int, ...], Path]]] = {}
        for file, ids in self._files.items():
            for length in {len(prompt) for prompt in prompts}:
                if ids[:length] in prompts:
                    answers.setdefault(ids[:length], []).append((ids[length:], file))
        for task in tasks:
            for ids, file in answers.get(task.prompt_ids, ()):
                whole = self._answer_tokens(ids, task)
                if whole and (batch := self._batch(task, whole, file)) is not None:
                    yield batch
                    break

    def _answer_tokens(self, ids: tuple[int, ...], task: Task) -> tuple[int, ...]:
        """All tokens of the task's answer, of which `ids` may lack the last; empty if others."""
        if ids == task.answer_ids[: len(ids)] and len(task.answer_ids) - len(ids) <= 1:
            return task.answer_ids
        # The program's tokens need not be those that the tokenizer would choose for the text.
        text = self.model.tokenizer.decode(ids, skip_special_tokens=True)
        return ids if text.strip() == str(task.answer).strip() else ()

    def _batch(self, task: Task, ids: tuple[int, ...], file: Path) -> AnswerBatch | None:
        """The answer with its entities' states; None where the file lacks one of them."""
        answer = unread_answer(str(task.number), str(task.answer).strip(), ids)
        answer = replace(answer, log_probs=())  # not known, which is no NaN on disk
        one = locate_answer(self.model, task.question, answer, every=task.every)
        states = read_states_file(self.model, file)[1][:, -self.model.blocks :]
        if states.shape[1] != self.model.blocks:
            raise UserError(
                f"{file} holds {states.shape[1]} layers, and {self.model.name} has "
                f"{self.model.blocks}. Write all of them."
            )
        at = [len(task.prompt_ids) + entity.tokens[-1] for entity in one.entities]
        if any(place >= len(states) for place in at):
            return None
        return AnswerBatch(numbers=[task.number], answers=[one], clean=on_host(states[at]))


def read_prompt_ends(
    model: Model, prefix_of: PrefixOf, prompts: Sequence[tuple[int, ...]], *, layer: int
) -> np.ndarray:
    """The states [prompt, width] after `layer` at the last token of each prompt."""
    require_understood(model)
    found = np.empty((len(prompts), model.parts.width), np.float32)
    with Lease(model) as lease:

        def work(batch: list[int]) -> np.ndarray:
            own = [prompts[n] for n in batch]
            grown = grow_trunk(lease, fitting(prefix_of(lease), own), own)
            return on_host(grown.last.states[:, layer - 1])

        for batch, states in in_batches(
            range(len(prompts)),
            work,
            length=lambda n: len(prompts[n]),
            then=lambda n: n,
            budget=Budget.of(model),
        ):
            found[batch] = states
    return found


def sample_answers(
    lease: Lease,
    answerer: Answerer,
    prefix_of: PrefixOf,
    prompts: Sequence[tuple[int, ...]],
    keys: Sequence[str],
    *,
    samples: int,
    temperature: float,
    seed: int,
) -> list[tuple[list[Answer], float]]:
    """Sample several answers to each prompt; the answers and their milliseconds, [prompt].

    The samples depend on the seed and the prompt's key, not on the batch.
    """
    if not prompts:
        return []
    prefix, budget = prefix_of(lease), Budget.of(lease.model)

    def length(n: int) -> int:
        return max(len(prompts[n]) - len(prefix), samples)

    def work(batch: list[int]) -> tuple[list[list[Answer]], float]:
        numbers = [
            uniforms(seed, keys[n], samples=samples, steps=answerer.max_tokens) for n in batch
        ]
        sampling = Sampling(temperature, torch.from_numpy(np.stack(numbers)))
        own = [prompts[n] for n in batch]
        begun = time.perf_counter()
        answers = answerer.sample(
            lease, fitting(prefix, own), [keys[n] for n in batch], own, sampling
        )
        return answers, (time.perf_counter() - begun) * 1000 / len(batch)

    room = max(map(length, range(len(prompts)))) + answerer.max_tokens
    most = prefix.rows_within(budget.written, room=room, segmented=lease.fused)
    rows = None if most is None else max(1, most // samples)
    found: dict[int, tuple[list[Answer], float]] = {}
    for batch, (answers, ms) in in_batches(
        range(len(prompts)), work, length=length, then=lambda n: keys[n], budget=budget, rows=rows
    ):
        found |= {n: (drawn, ms) for n, drawn in zip(batch, answers, strict=True)}
    return [found[n] for n in range(len(prompts))]


def uniforms(seed: int, key: str, *, samples: int, steps: int) -> np.ndarray:
    """Random numbers in [0, 1) for sampling the answers to one question, [answer, step]."""
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).random((samples, steps))


def on_host(states: Tensor) -> np.ndarray:
    """Copy states [row, ...] to the host, rounded to half precision as in a run folder."""
    return to_host(states).astype(np.float32)


def fitting(prefix: Prefix, prompts: Sequence[tuple[int, ...]]) -> Prefix:
    """The shared prefix, or an empty one if a prompt does not begin with it."""
    if any(p[: len(prefix)] != prefix.ids or len(p) <= len(prefix) for p in prompts):
        return Prefix((), None)
    return prefix


def _write(
    lease: Lease,
    answerer: Answerer,
    prefix: Prefix,
    batch: Sequence[Task],
    on_token: OnToken | None,
) -> tuple[list[LocatedAnswer], Tensor]:
    """Generate the model's own answers; states [entity, layer, width] come from the same pass."""
    ids, prompts = [str(task.number) for task in batch], [task.prompt_ids for task in batch]

    def numbered(step: Step) -> None:
        assert on_token is not None
        on_token(replace(step, rows=tuple(batch[row].number for row in step.rows)))

    listener = None if on_token is None else numbered
    done = answerer.answer(lease, prefix, ids, prompts, on_token=listener)
    answers = [
        locate_answer(answerer.model, task.question, answer, every=task.every)
        for task, answer in zip(batch, done.answers, strict=True)
    ]
    answers = [replace(one, as_trained=len(one.entities) == 1) for one in answers]
    places = [(n, entity.tokens[-1]) for n, one in enumerate(answers) for entity in one.entities]
    row, token = np.array(places, dtype=np.int64).reshape(-1, 2).T.tolist()
    return answers, done.states[row, token]


def _read(
    lease: Lease, prefix: Prefix, batch: Sequence[Task], token_log_probs: bool
) -> tuple[list[LocatedAnswer], Tensor]:
    """Read given answers, each token fed once; optionally with every token's log-probability."""

    def located(task: Task) -> LocatedAnswer:
        answer = unread_answer(str(task.number), str(task.answer).strip(), task.answer_ids)
        if task.single is not None:
            return locate_single(task.single, lease.model, task.question, answer)
        return locate_answer(lease.model, task.question, answer, every=task.every)

    answers = [located(task) for task in batch]
    read = read_given(
        lease,
        prefix,
        [task.prompt_ids for task in batch],
        [task.answer_ids for task in batch],
        [[entity.tokens[-1] for entity in one.entities] for one in answers],
        head=token_log_probs,
    )
    pairs = zip(answers, read.answers, strict=True)
    answers = [replace(one, answer=replace(one.answer, **vars(own))) for one, own in pairs]
    return answers, torch.cat(read.states)
