"""anchorscope's engine: the prefix once, states caught while answering, rows forked from there."""

from __future__ import annotations

import torch
from peers_clock import Clock
from peers_job import MAX_TOKENS, Job
from torch import Tensor

from anchorscope import Model, load_model
from anchorscope.answers.generate import Answerer
from anchorscope.engine.batches import by_length
from anchorscope.engine.intervene import read_rows, rows_for
from anchorscope.engine.interventions import KNOCKOUT, Marked
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import read_prefix, shared_prefix

BUDGET = {"cpu": 1024, "cuda": 32768}  # padded tokens of one pass, as in a run


def load(job: Job) -> Model:
    return load_model(job.folder, device=job.device, dtype=job.dtype)


def run(model: Model, job: Job, clock: Clock) -> tuple[list[list[int]], Tensor, Tensor]:
    """Answers, clean states and knocked-out states [row, layer, width]."""
    answers, clean, knocked = {}, {}, {}
    last = {n: len(row) - len(job.prompts[n]) - 1 for n, row in zip(job.asked, job.rows)}
    budget = BUDGET.get(model.device.type, BUDGET["cpu"])
    with Lease(model) as lease:
        with clock.of("generate"):
            stop = min(at for exact in job.exact for at in exact)
            prefix = read_prefix(lease, shared_prefix(job.prompts, stop))
            answerer = Answerer(model, max_tokens=MAX_TOKENS)
            every = range(len(job.prompts))
            parts = by_length(every, lambda n: len(job.prompts[n]), budget=budget, then=int)
        for part in parts:
            with clock.of("generate"):
                prompts = [job.prompts[n] for n in part]
                done = answerer.answer(lease, prefix, [str(n) for n in part], prompts)
                answers |= {n: list(a.token_ids) for n, a in zip(part, done.answers)}
            with clock.of("clean"):
                rows = [row for row, n in enumerate(part) if n in last]
                states = done.states[rows, [last[part[row]] for row in rows]].float().cpu()
                clean |= {part[row]: state for row, state in zip(rows, states)}
            with clock.of("knockout"):
                how = {"blocks": model.blocks, "turn_at": len(prefix), "seed": 0}
                forks = []
                for row in rows:
                    marked = mark(job, part[row], answers[part[row]][: last[part[row]] + 1])
                    forks += rows_for(marked, row, KNOCKOUT, **how)
                for read, states in read_rows(lease, done.trunk, forks, budget=budget):
                    for fork, state in zip(read, states.float().cpu()):
                        knocked[part[fork.number]] = state
    states = (torch.stack([of[n] for n in job.asked]) for of in (clean, knocked))
    return [answers[n] for n in every], *states


def mark(job: Job, number: int, answer: list[int]) -> Marked:
    """Where the subject and the answer stand."""
    prompt, exact = job.prompts[number], tuple(job.exact[number])
    ids = tuple(prompt + answer)
    return Marked(id=str(number), ids=ids, answer_at=len(prompt), question=(), exact=exact)


CODE = (run, mark)
