"""Do the job with anchorscope: one pass over the prefix, states kept while answering."""

from __future__ import annotations

import torch
from peers_clock import Clock
from peers_job import MAX_TOKENS, Job
from torch import Tensor

from anchorscope import Model, load_model
from anchorscope.answers.generate import Answered, Answerer
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.interventions import KNOCKOUT, TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_rows, row_for


def load(job: Job) -> Model:
    return load_model(job.folder, device=job.device, dtype=job.dtype)


def run(model: Model, job: Job, clock: Clock) -> tuple[list[list[int]], Tensor, Tensor]:
    """Answers, clean states and knocked-out states [row, layer, width]."""
    answers, clean, knocked = {}, {}, {}
    last = dict(zip(job.asked, (len(row) - 1 for row in job.rows), strict=True))
    budget = Budget.of(model)
    with Lease(model) as lease:
        with clock.of("generate"):
            stop = min(at for exact in job.exact for at in exact)
            prefix = read_prefix(lease, shared_prefix(job.prompts, stop))
            answerer = Answerer(model, max_tokens=MAX_TOKENS)

        def answer(batch: list[int]) -> Answered:
            prompts, names = [job.prompts[n] for n in batch], [str(n) for n in batch]
            with clock.of("generate"):
                return answerer.answer(lease, prefix, names, prompts)

        def own(number: int) -> int:
            return len(job.prompts[number]) - len(prefix)

        every = range(len(job.prompts))
        room = max(map(own, every)) + MAX_TOKENS
        fit = prefix.rows_within(budget.written, room=room)
        sizes = {"length": own, "then": int, "budget": budget, "rows": fit}
        for batch, done in in_batches(every, answer, **sizes):
            answers |= {n: list(a.token_ids) for n, a in zip(batch, done.answers, strict=True)}
            rows = [(row, n) for row, n in enumerate(batch) if n in last]
            with clock.of("clean"):
                at = [last[n] - len(job.prompts[n]) for _, n in rows]
                states = done.states[[row for row, _ in rows], at].float().cpu()
                clean |= dict(zip((n for _, n in rows), states, strict=True))
            with clock.of("knockout"):
                marked = [(row, mark(job, n, answers[n], last[n])) for row, n in rows]
                forks = [row_for(done.trunk, own, row, KNOCKOUT) for row, own in marked]
                for read, states in read_rows(lease, done.trunk, forks, budget=budget):
                    numbers = [batch[row.number] for row in read]
                    knocked |= dict(zip(numbers, states.float().cpu(), strict=True))
            del done, states  # before the next batch has its own
    clean, knocked = (torch.stack([by_n[n] for n in job.asked]) for by_n in (clean, knocked))
    return [answers[n] for n in every], clean, knocked


def mark(job: Job, number: int, answer: list[int], last: int) -> TokenPositions:
    """The token positions of a question's subject and answer."""
    prompt, exact = job.prompts[number], tuple(job.exact[number])
    ids = tuple(prompt + answer)[: last + 1]
    return TokenPositions(
        id=str(number), ids=ids, answer_at=len(prompt), question_tokens=(), exact_question=exact
    )


CODE = (run, mark)
