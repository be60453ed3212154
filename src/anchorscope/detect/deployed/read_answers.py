"""Answers with their clean states: written by the model, or given and read in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import (
    LocatedAnswer,
    locate_answer,
    on_host,
    unknown_answer,
)
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import GrownTrunk, OnToken, Prefix, grow_trunk, states_bytes
from anchorscope.engine.kv_cache import ForkedCache
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import Row, lay_out, read_batch
from anchorscope.errors import UserError
from anchorscope.models.prompts import Prompt
from anchorscope.records import Answer

# Logits held at once, as many as 256 MiB of float32 hold; one answer's at least.
LOGITS = 1 << 26


@dataclass(frozen=True, kw_only=True)
class AnswerBatch:
    """Some of the answers, with their states at the probe position."""

    numbers: list[int]  # which of the questions they answer
    answers: list[LocatedAnswer]
    clean: np.ndarray  # [answer, layer, width]; those without E_A hold anything


@dataclass(frozen=True)
class _Task:
    """One question to answer, or with an answer to read."""

    number: int
    question: str
    prompt: Prompt
    answer: str | None
    answer_ids: tuple[int, ...] = ()  # of a given answer


def read_answers(
    bound: Bound,
    questions: Sequence[str],
    answers: Sequence[str | None] | None = None,
    *,
    token_log_probs: bool = False,
    on_token: OnToken | None = None,
) -> Iterator[AnswerBatch]:
    """The model's own answers, and the given ones where there are any, a batch at a time.

    With `token_log_probs` given answers have the log-probability of every token too; the model's
    own always have it. `on_token` follows the model's own answer to a single question.
    """
    if answers is not None and len(answers) != len(questions):
        raise UserError(f"{len(questions)} questions and {len(answers)} answers were given.")
    texts = answers or [None] * len(questions)
    tasks = [
        _task(bound, number, question, answer)
        for number, (question, answer) in enumerate(zip(questions, texts, strict=True))
    ]
    require_understood(bound.model)
    budget = Budget.of(bound.model)
    states = states_bytes(bound.model, bound.answerer.max_tokens)
    rows = Prefix((), None).rows_within(budget.written, room=0, beside=states)
    with Lease(bound.model) as lease:

        def work(batch: list[_Task]) -> AnswerBatch:
            if batch[0].answer is None:
                located, clean = _write(lease, bound, batch, on_token)
            else:
                located, clean = _read(lease, bound, batch, token_log_probs)
            numbers = [task.number for task in batch]
            return AnswerBatch(numbers=numbers, answers=located, clean=on_host(clean))

        for written in (False, True):
            for _, batch in in_batches(
                [task for task in tasks if (task.answer is None) == written],
                work,
                length=lambda task: len(task.prompt.ids) + len(task.answer_ids),
                then=lambda task: task.number,
                budget=budget,
                rows=rows if written else None,
            ):
                yield batch


def _task(bound: Bound, number: int, question: str, answer: str | None) -> _Task:
    if answer is None:
        return _Task(number, question, bound.checked_prompt(question), None)
    ids = bound.answer_tokens(question, answer)
    return _Task(number, question, bound.checked_prompt(question, ids), answer, ids)


def _prefix(lease: Lease, bound: Bound, batch: Sequence[_Task]) -> Prefix:
    """The prefix that all prompts share; an empty one where a prompt differs in it."""
    fits = all(task.prompt.ids[: len(bound.shared)] == bound.shared for task in batch)
    return bound.prefix(lease) if fits else Prefix((), None)


def _write(
    lease: Lease, bound: Bound, batch: Sequence[_Task], on_token: OnToken | None
) -> tuple[list[LocatedAnswer], Tensor]:
    """The model's own answers; their states were computed on the way."""
    ids, prompts = [str(task.number) for task in batch], [task.prompt.ids for task in batch]
    prefix = _prefix(lease, bound, batch)
    done = bound.answerer.answer(lease, prefix, ids, prompts, on_token=on_token)
    answers = [
        locate_answer(bound.model, task.question, answer)
        for task, answer in zip(batch, done.answers, strict=True)
    ]
    last = [one.exact_answer[-1] if one.exact_answer else 0 for one in answers]
    return answers, done.states[list(range(len(batch))), last]


def _read(
    lease: Lease, bound: Bound, batch: Sequence[_Task], token_log_probs: bool
) -> tuple[list[LocatedAnswer], Tensor]:
    """Given answers, fed once: up to the probe position, or whole for every log-probability."""
    answers = [
        locate_answer(
            bound.model,
            task.question,
            unknown_answer(str(task.answer), task.answer_ids, task.number),
        )
        for task in batch
    ]
    prompts = [task.prompt.ids for task in batch]
    prefix = _prefix(lease, bound, batch)
    grown = grow_trunk(lease, prefix, prompts, room=0, head=token_log_probs)
    if token_log_probs:
        return _read_tokens(lease, grown, prompts, answers)
    rows = []
    for number, (prompt, one) in enumerate(zip(prompts, answers, strict=True)):
        stop = one.exact_answer[-1] + 1 if one.exact_answer else 1
        rows.append(_row(number, prompt, one.answer.token_ids[:stop] or (0,)))
    return answers, read_batch(lease, grown.trunk, rows)


def _row(number: int, prompt: tuple[int, ...], ids: tuple[int, ...]) -> Row:
    """Tokens of an answer after its prompt, nothing changed."""
    return Row(number, CLEAN, (), ids, tuple(range(len(prompt), len(prompt) + len(ids))), range(0))


def _read_tokens(
    lease: Lease,
    grown: GrownTrunk,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[LocatedAnswer],
) -> tuple[list[LocatedAnswer], Tensor]:
    """The answers with the log-probability of each token and the entropy of the first, and their
    states [answer, layer, width] at the probe position; those without E_A hold anything.

    Each token is fed once. The logits of the prompts' last tokens are those of the first token.
    """
    assert grown.last.logits is not None, "the trunk was grown without its head"
    first = torch.log_softmax(grown.last.logits.float(), dim=-1)  # [answer, word]
    read: dict[int, LocatedAnswer] = {}
    states = grown.last.states.clone()  # an answer without tokens has nothing of its own
    for numbers in _within(LOGITS // first.shape[1], [len(a.answer.token_ids) for a in answers]):
        part = [answers[n] for n in numbers]
        rows = [_row(n, prompts[n], answers[n].answer.token_ids) for n in numbers]
        later, states[numbers] = _read_rows(lease, grown, rows, part)
        for n, one, log_probs in zip(numbers, part, later, strict=True):
            read[n] = replace(one, answer=_with_log_probs(one.answer, first[n], log_probs))
    return [read.get(n, one) for n, one in enumerate(answers)], states


def _within(limit: int, tokens: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the answers that go together: `limit` tokens at most, or one answer alone."""
    batch: list[int] = []
    for number in (n for n, count in enumerate(tokens) if count):
        if batch and sum(tokens[n] for n in batch) + tokens[number] > limit:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _read_rows(
    lease: Lease, grown: GrownTrunk, rows: Sequence[Row], answers: Sequence[LocatedAnswer]
) -> tuple[list[list[float]], Tensor]:
    """The log-probabilities of all tokens but the first, by answer, and the states at E_A."""
    trunk = grown.trunk
    tokens, layout, number = lay_out(lease, trunk, rows)
    memory = ForkedCache(trunk.pairs, number, trunk.prefix.pairs, segmented=lease.fused)
    probe = [
        row.at[one.exact_answer[-1] if one.exact_answer else -1]
        for row, one in zip(rows, answers, strict=True)
    ]
    # A token's logits are those of the token after it, so the last one of a row needs none.
    needed = torch.ones(len(layout.place), dtype=torch.bool, device=tokens.device)
    needed[layout.last()] = False
    before = needed.nonzero()[:, 0]
    read = lease.run(
        tokens, layout, memory, head=len(before) > 0, logits_at=before,
        extra_position=torch.tensor(probe, device=tokens.device),
    )  # fmt: skip
    assert read.extra is not None
    later = [row.ids[1:] for row in rows]
    if read.logits is None:
        return [[] for _ in later], read.extra
    logits = read.logits.float()
    chosen = torch.tensor([i for ids in later for i in ids], device=logits.device)
    own = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(dim=1)
    return [part.tolist() for part in own.split([len(ids) for ids in later])], read.extra


def _with_log_probs(answer: Answer, first: Tensor, later: Sequence[float]) -> Answer:
    """The answer with each token's log-probability; `first` [word] are those of all first words."""
    entropy = -(first.exp() * first).nan_to_num(0.0).sum()
    own = (float(first[answer.token_ids[0]]), *later)
    return replace(answer, log_probs=own, first_entropy=float(entropy))
