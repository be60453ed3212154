"""Sample several answers to each question at a temperature, a shard at a time: evidence/sampled."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from anchorscope.answers.generate import Answerer
from anchorscope.engine.batches import in_batches
from anchorscope.engine.decode import Sampling
from anchorscope.evidence.shards import Shards, budget_of, evidence_name
from anchorscope.records import Answer, Sample
from anchorscope.run_folder.table_columns import SAMPLED_ROWS

NAME = "sampled"


def draw_answers(shards: Shards, *, samples: int, temperature: float, max_tokens: int) -> None:
    """Sample for every answer a detector may use; shards on disk are not sampled again."""
    answerer = Answerer(shards.lease.model, max_tokens=max_tokens)

    def work(number: int, dataset: str, answered: list[Sample]) -> None:
        usable = [sample for sample in answered if sample.usable]
        rows = _drawn(shards, answerer, dataset, usable, samples, temperature)
        shards.save_table(NAME, number, pd.DataFrame(rows, columns=list(SAMPLED_ROWS)))

    shards.each("sampled answers", lambda n: [evidence_name(NAME, n)], work)


def uniforms(seed: int, id: str, *, samples: int, steps: int) -> np.ndarray:
    """The numbers in [0, 1) that decide the tokens of one question's answers, [answer, step].

    They depend on the seed and the question alone, not on the batch it is drawn in.
    """
    digest = hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).random((samples, steps))


def _drawn(
    shards: Shards,
    answerer: Answerer,
    dataset: str,
    questions: Sequence[Sample],
    samples: int,
    temperature: float,
) -> list[tuple]:
    """A row per question and drawn answer, in the order of the questions."""
    if not questions:
        return []
    lease, prefix, budget = shards.lease, shards.prefix(dataset), budget_of(shards.lease)

    def own(sample: Sample) -> int:
        return max(len(sample.prompt_ids) - len(prefix), samples)

    def work(batch: list[Sample]) -> tuple[list[list[Answer]], float]:
        steps = answerer.max_tokens
        numbers = [uniforms(shards.seed, s.id, samples=samples, steps=steps) for s in batch]
        sampling = Sampling(temperature, torch.from_numpy(np.stack(numbers)))
        ids, prompts = [s.id for s in batch], [s.prompt_ids for s in batch]
        begun = time.perf_counter()
        answers = answerer.sample(lease, prefix, ids, prompts, sampling)
        return answers, (time.perf_counter() - begun) * 1000 / len(batch)

    room = max(map(own, questions)) + answerer.max_tokens
    fitting = prefix.rows_within(budget.written, room=room, segmented=lease.fused)
    rows = None if fitting is None else max(1, fitting // samples)
    by_id: dict[str, list[tuple]] = {}
    for batch, (answers, ms) in in_batches(
        questions, work, length=own, then=lambda s: s.id, budget=budget, rows=rows
    ):
        for sample, drawn in zip(batch, answers, strict=True):
            by_id[sample.id] = [_row(a, number, ms / samples) for number, a in enumerate(drawn)]
    return [row for sample in questions for row in by_id[sample.id]]


def _row(answer: Answer, number: int, ms: float) -> tuple:
    # A finished answer took one more pass: the one that chose the token to stop at.
    tokens = len(answer.token_ids)
    passes = tokens + int(answer.finished)
    return (answer.id, number, answer.text, float(sum(answer.log_probs)), tokens, passes, ms)
