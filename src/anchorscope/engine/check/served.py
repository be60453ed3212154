"""Compare vLLM's answers, states and knockouts with transformers' stock attention.

The same rows go through the functions that a run calls, and through a plain transformers model of
the same weights, which the engine does not touch. Many rows of different length fill several of
vLLM's batches, so prompts are split into chunks, and rows with other cuts share each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anchorscope.engine.batches import Budget
from anchorscope.engine.check.checks import (
    Check,
    against_stock,
    decoding_errors,
    engine_states,
    kinds_for,
    positions_for,
    prompts_for,
)
from anchorscope.engine.check.stock import rounding, stock_pass, stock_states, stock_under
from anchorscope.engine.decode import Trunk, read_prefix, write_answers
from anchorscope.engine.interventions import ANSWER_ONLY, CLEAN, KNOCKOUT, TokenPositions
from anchorscope.engine.lease import Lease, distance
from anchorscope.engine.read import read_rows_with_output, row_for, unchanged_row, with_mass
from anchorscope.models import Model

_ANSWER = 3
_COPIES = 200  # of each row in the large batch: more than vLLM computes at once


def check_served(model: Model, plain: Model) -> Iterator[Check]:
    """Check a model inside vLLM against `plain`, the same weights loaded by transformers."""
    prompts = prompts_for(plain)
    with Lease(model) as lease:
        prefix = read_prefix(lease, ())
        never = torch.tensor([-1])
        written = write_answers(lease, prefix, prompts, stop_ids=never, limit=_ANSWER)
        # Fetched at once: the next reading replaces this one.
        chosen, count = torch.arange(_ANSWER), range(len(prompts))
        own = torch.stack([written.states[torch.full_like(chosen, n), chosen] for n in count])
        trunk = written.trunk
        samples = [
            positions_for(prompt, answer.token_ids)
            for prompt, answer in zip(prompts, written.answers, strict=True)
        ]
        kinds = {
            name: kind
            for name, kind in kinds_for(plain).items()
            if kind.where == "pre" and kind.heads is None
        }
        states = engine_states(lease, trunk, samples, (*kinds.values(), ANSWER_ONLY))
        crowd = _crowd(lease, trunk, samples)
        masses = with_mass(lease, trunk, samples, budget=Budget.of(model))
    ids = [sample.ids for sample in samples]
    stock = stock_pass(plain, ids)
    limit = rounding(plain, ids, stock)
    last = torch.tensor([len(row) - 1 for row in ids])
    clean = stock.states[torch.arange(len(ids)), last].cpu()
    cut = stock_under(plain, samples, KNOCKOUT, layer=plain.blocks).cpu()
    far, unsure = decoding_errors(
        replace(written, states=own), samples, stock.states.cpu(), stock.logits.cpu()
    )
    yield Check(
        "answers and clean states are those of stock attention",
        far < limit and unsure < 10 * limit,
        f"largest difference {far:.1e}, rounding allows {limit:.1e}; "
        f"of log-probabilities {unsure:.1e}",
    )
    for name, kind in kinds.items():
        yield against_stock(
            plain,
            samples,
            name,
            kind,
            states[kind.name].to(plain.device),
            clean.to(plain.device),
            limit,
        )
    alone = stock_states(plain, [(s.ids[0], *s.ids[s.answer_at :]) for s in samples]).cpu()
    far = distance(states[ANSWER_ONLY.name], alone)
    yield Check("the answer alone", far < limit, f"largest difference {far:.1e}")
    for name, read, theirs, others in zip(
        ("clean", "knocked-out"), crowd, (clean, cut), (cut, clean), strict=True
    ):
        far = max(distance(part, theirs) for part in read)
        near = min(distance(part, others) for part in read)
        count = _COPIES * len(samples)
        seen = f"{count:,} rows, largest difference {far:.1e}; to the others {near:.1e}"
        yield Check(
            f"{name} rows do not mix with others of a large batch", far < limit < near, seen
        )
    eager = [mark.mass for mark in masses if mark is not None]
    yield _mass_check(plain, samples, [list(mass or ()) for mass in eager], limit)


def _crowd(
    lease: Lease, trunk: Trunk, samples: Sequence[TokenPositions]
) -> tuple[list[Tensor], list[Tensor]]:
    """Clean and knocked-out states of many copies of all samples, read in one call, by turns."""
    rows = []
    for _ in range(_COPIES):
        for n, sample in enumerate(samples):
            rows += [unchanged_row(sample, n), row_for(trunk, sample, n, KNOCKOUT)]
    read: dict[str, list[list[Tensor]]] = {
        CLEAN.name: [[] for _ in samples],
        KNOCKOUT.name: [[] for _ in samples],
    }
    for batch, states, _ in read_rows_with_output(
        lease, trunk, rows, budget=Budget.of(lease.model)
    ):
        for row, state in zip(batch, states, strict=True):
            read[row.intervention.name][row.number].append(state)
    clean, cut = (
        list(torch.stack([torch.stack(own) for own in each], dim=1)) for each in read.values()
    )
    return clean, cut


def _mass_check(
    plain: Model, samples: Sequence[TokenPositions], masses: Sequence[Sequence[float]], limit: float
) -> Check:
    """Compare attention masses with the weights that transformers returns."""
    far = 0.0
    before = plain.lm.config._attn_implementation or "eager"
    plain.lm.set_attn_implementation("eager")
    for sample, mass in zip(samples, masses, strict=True):
        with torch.no_grad():
            ids = torch.tensor([sample.ids], device=plain.device)
            weights = plain.lm(ids, output_attentions=True, use_cache=False).attentions
        theirs = torch.stack([w[0, :, -1].float().mean(dim=0) for w in weights]).mean(dim=0)
        far = max(far, float((torch.tensor(mass) - theirs.cpu()).abs().max()))
    plain.lm.set_attn_implementation(before)
    return Check("attention mass", far < limit, f"largest difference {far:.1e}")
