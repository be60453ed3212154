"""Collect what detectors learn from beside a run's states: own labelled rows, sampled answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.answers.generate import Answerer
from anchorscope.detect.prompts import Exchange, common_prefix, tasks_of
from anchorscope.detect.read_answers import StatesFolder, read_answers, sample_answers
from anchorscope.detect.rows import exchange_of, is_right
from anchorscope.errors import UserError
from anchorscope.evidence.shards import Shards
from anchorscope.models import Model
from anchorscope.models.prompts import too_long
from anchorscope.records import Question, Sample
from anchorscope.run_folder.samples import answers_name, evidence_name, to_frame
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import SAMPLED_ROWS


def questions_of(
    rows: Sequence[Mapping[str, Any]], name: str
) -> tuple[tuple[Question, ...], list[tuple[Exchange, bool]]]:
    """The question of each row, and its exchange with its label (True for right)."""
    questions, given = [], []
    for number, row in enumerate(rows):
        where = f"Row {number + 1} of {name}"
        exchange = exchange_of(row, where)
        if exchange.question:  # as a user's turn: no detector has a prompt of its own yet
            turn = {"role": "user", "content": exchange.question}
            exchange = Exchange(messages=(turn,), answer=exchange.answer)
        given.append((exchange, is_right(row.get("label"), where)))
        entity = str(row.get("entity") or exchange.asked)
        id, text = f"{name}:all:{number}", exchange.asked
        questions.append(Question(id=id, dataset=name, text=text, answers=(), entity=entity))
    return tuple(questions), given


def read_rows(
    store: Store,
    model: Model,
    number: int,
    questions: Sequence[Question],
    given: Sequence[tuple[Exchange, bool]],
    note: Callable[[str], None],
    folder: StatesFolder | None = None,
) -> None:
    """Read and store one shard of own rows; rows without an entity are not usable.

    With a `folder` their states are taken from it, and nothing goes through the model.
    """
    tasks = [
        task
        for place, (exchange, _) in enumerate(given)
        for task in tasks_of(model, None, exchange, place, every=False)
    ]
    reasons = [
        too_long(model, task.question, len(task.prompt_ids), len(task.answer_ids)) for task in tasks
    ]
    for question, reason in zip(questions, reasons, strict=True):
        if reason:
            note(f"{question.id} is left out: {reason}")
    fitting = [task for task, reason in zip(tasks, reasons, strict=True) if not reason]
    samples, states = {}, {}
    if folder is None:
        prefix, answerer = common_prefix(fitting), Answerer(model, max_tokens=1)
        batches = read_answers(answerer, prefix, fitting, token_log_probs=True)
    else:
        batches = folder.read(fitting)
    for batch in batches:
        ends = np.cumsum([len(one.entities) for one in batch.answers])
        for place, one, end in zip(batch.numbers, batch.answers, ends, strict=True):
            task, question, (_, right) = tasks[place], questions[place], given[place]
            entity, before = one.entities[0] if one.entities else None, len(task.prompt_ids)
            samples[place] = Sample(
                question=question,
                answer=replace(one.answer, id=question.id),
                verdict="right" if right else "wrong",
                finder="given",
                spans=(),
                answer_span=entity.span if entity else None,
                prompt_ids=task.prompt_ids,
                question_tokens=(),
                exact_question=(before - 1,),  # a placeholder: nothing is cut
                exact_answer=tuple(before + n for n in entity.tokens) if entity else (),
            )
            if entity:
                states[place] = batch.clean[end - 1].astype(np.float16)
    for task in fitting if folder is not None else ():
        if task.number not in samples:
            note(f"{questions[task.number].id} is left out: no file has its tokens and states")
    shape = (len(states), model.blocks, model.parts.width)
    stacked = np.array([states[n] for n in sorted(states)], dtype=np.float16).reshape(shape)
    ids = [samples[n].id for n in sorted(states)]
    save_states(store, shard_name("clean", number), ids, stacked)
    frame = to_frame([samples[n] for n in sorted(samples)])
    store.write(answers_name(number), frame.to_parquet)


def check_sampling(samples: int, temperature: float) -> None:
    """Raise a UserError for an invalid number of sampled answers or an invalid temperature."""
    if samples < 2:
        raise UserError(f"--samples is {samples}. Accepted: 2 or more, or leave it out.")
    if not 0 < temperature < float("inf"):
        raise UserError(f"--temperature is {temperature}. Accepted: a number above 0.")


def draw_answers(shards: Shards, *, samples: int, temperature: float, max_tokens: int) -> None:
    """Sample answers to all usable questions of a run; shards already on disk are kept."""
    answerer = Answerer(shards.lease.model, max_tokens=max_tokens)

    def work(number: int, dataset: str, answered: list[Sample]) -> None:
        usable = [sample for sample in answered if sample.usable]
        drawn = sample_answers(
            shards.lease,
            answerer,
            common_prefix(usable),
            [sample.prompt_ids for sample in usable],
            [sample.id for sample in usable],
            samples=samples,
            temperature=temperature,
            seed=shards.seed,
        )
        # A finished answer took one more pass: the one that chose the stop token.
        rows = [
            (a.id, n, a.text, float(sum(a.log_probs)), len(a.token_ids),
             len(a.token_ids) + int(a.finished), ms / samples)
            for answers, ms in drawn for n, a in enumerate(answers)
        ]  # fmt: skip
        shards.save_table("sampled", number, pd.DataFrame(rows, columns=list(SAMPLED_ROWS)))

    shards.each("sampled answers", lambda n: [evidence_name("sampled", n)], work)
