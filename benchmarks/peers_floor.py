"""The least that the job of `peers.py` can take on this machine: its arithmetic, at the bare rate.

    python benchmarks/peers_job.py --questions 128 --out job.json
    python benchmarks/peers_floor.py job.json

Counted are the products of the blocks and of the head for tokens that nobody can leave out: the
shared prefix once, each question's own tokens once, each answer's tokens once, and, for the
knockout, the tokens from the first that the cut changes to the probe position. Attention, norms and
everything else count as nothing. The rate is the best that the products of one block reach here by
themselves, for packs of several sizes. What a way of `peers.py` takes, divided by this, bounds how
many times faster than it anything can be that does this arithmetic.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import torch
from peers_job import Job
from torch.nn.functional import linear
from way_anchorscope import mark

from anchorscope import Model, load_model
from anchorscope.engine.decode import shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import KNOCKOUT
from anchorscope.engine.read import row_for

ROWS, REPEATS, SECONDS = (128, 512, 1024, 4096), 5, 1.0


class Tokens(NamedTuple):
    """What must go through the blocks, and how often the head is asked."""

    answers: int
    knockout: int
    head: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", type=Path, help="what peers_job.py wrote")
    job = Job.load(parser.parse_args().job)
    model = load_model(job.folder, device=job.device, dtype=job.dtype)
    tokens, inner, head = tokens_of(job, model), _inner(model), _head(model)
    with Lease(model):  # whatever multiplies while a model is leased
        rates = {rows: rate(model, rows) for rows in ROWS}
    best = max(rates.values())
    answers = 2 * (inner * tokens.answers + head * tokens.head) / best
    knockout = 2 * inner * tokens.knockout / best
    said = ", ".join(f"{rows} rows {of / 1e9:.1f}" for rows, of in rates.items())
    print(f"{job.dtype} on {job.device}, {torch.get_num_threads()} threads; GFLOP/s of: {said}")
    print(f"{tokens.answers:,} tokens for the answers, {tokens.knockout:,} for the knockout")
    print(f"floor: answers {answers:.1f} s, knockout {knockout:.1f} s, {answers + knockout:.1f} s")


def tokens_of(job: Job, model: Model) -> Tokens:
    """The tokens of the job that no way can leave out."""
    prefix = len(shared_prefix(job.prompts, min(at for exact in job.exact for at in exact)))
    own = sum(len(prompt) - prefix for prompt in job.prompts)
    written = sum(map(len, job.answers))
    how = {"blocks": model.blocks, "turn_at": prefix, "seed": 0}
    marked = (
        mark(job, number, job.answers[number], len(row) - 1)
        for number, row in zip(job.asked, job.rows, strict=True)
    )
    cut = sum(len(row_for(of, 0, KNOCKOUT, **how).ids) for of in marked)
    return Tokens(prefix + own + written, cut, len(job.prompts) + written)


@torch.no_grad()
def rate(model: Model, rows: int) -> float:
    """Operations a second of the products of one block, for a pack of so many rows."""
    weights = [of for of in model.parts.blocks[0].parameters() if of.dim() == 2]
    given = {of.shape[1]: torch.randn(rows, of.shape[1]).to(of) for of in weights}
    operations = 2 * rows * sum(of.numel() for of in weights)
    fastest = 0.0
    for _ in range(REPEATS):
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < SECONDS / REPEATS:
            for of in weights:
                linear(given[of.shape[1]], of)
            count += 1
        fastest = max(fastest, count * operations / (time.perf_counter() - begun))
    return fastest


def _inner(model: Model) -> int:
    return sum(of.numel() for block in model.parts.blocks for of in block.parameters())


def _head(model: Model) -> int:
    head = model.lm.get_output_embeddings()
    assert head is not None
    return head.weight.numel()


if __name__ == "__main__":
    main()
