"""Answers, greedy with the state of every token caught as it is fed, or drawn at a temperature."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorscope.engine.attention_mass import Mass
from anchorscope.engine.choice import drawn, entropies, likeliest
from anchorscope.engine.layout import Layout
from anchorscope.engine.lease import Lease
from anchorscope.engine.memory import Growing
from anchorscope.engine.transfer import sent
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk
from anchorscope.models import Model

# Rows are taken out of the batch when this share of them has finished: a copy of the memory for
# every row that ends would cost more than it saves.
_COMPACT_AT = 0.25


@dataclass(frozen=True)
class Line:
    """One answer: its tokens and how sure each was, at temperature 1."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    entropies: tuple[float, ...]  # of the distribution that each token was chosen from
    first_entropy: float  # there is one where the answer has no token
    finished: bool


@dataclass(frozen=True)
class Written:
    """A batch of greedy answers, the states of all layers at their tokens, and their trunk."""

    lines: tuple[Line, ...]
    states: Tensor  # [row, token, layer, width], on the model's device
    trunk: Trunk
    also: Tensor | None  # [row, layer, width] at one more position of the prompts, if asked for
    mass: Mass | None  # of attention, at every token, if asked for


def states_bytes(model: Model, tokens: int) -> int:
    """The bytes that the states of one answer of so many tokens take while it is written."""
    return tokens * model.blocks * model.parts.width * model.dtype.itemsize


@dataclass(frozen=True)
class Sampling:
    """Tokens drawn instead of the likeliest one.

    A row's numbers are its own, so what is drawn does not depend on the rows beside it.
    """

    temperature: float
    uniforms: Tensor  # [prompt, answer, step] in [0, 1): one number decides one token


@dataclass
class _Live:
    """The rows still being written."""

    rows: Tensor  # their numbers in the batch
    memory: Growing
    at: Tensor  # key positions [row, column]
    next_at: Tensor  # position of the token fed next [row]


def write_answers(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Tensor,
    limit: int,
    also_at: Sequence[int] | None = None,
    mass: bool = False,
) -> Written:
    """Each prompt's greedy answer up to a stop token (left out) or the limit."""
    grown = grow_trunk(lease, prefix, prompts, room=limit, head=True, also_at=also_at)
    pages = _Pages(lease, len(prompts), limit, mass=Mass() if mass else None)
    live = _Live(
        rows=torch.arange(len(prompts), device=lease.model.device),
        memory=grown.memory,
        at=grown.trunk.at,
        next_at=grown.trunk.at[:, -1] + 1,
    )
    _write(lease, prefix, pages, live, grown.last.logits, stop_ids=stop_ids, limit=limit)
    assert pages.states is not None
    return Written(pages.lines(), pages.states, grown.trunk, grown.last.also, pages.mass)


def write_samples(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Tensor,
    limit: int,
    sampling: Sampling,
) -> list[tuple[Line, ...]]:
    """Several drawn answers to each prompt, which is read once for all of them."""
    each = sampling.uniforms.shape[1]
    grown = grow_trunk(lease, prefix, prompts, room=limit, head=True)
    device = lease.model.device
    index = torch.arange(len(prompts), device=device).repeat_interleave(each)
    grown.memory.keep(index)
    assert grown.last.logits is not None
    at = grown.trunk.at[index]
    live = _Live(
        rows=torch.arange(len(index), device=device),
        memory=grown.memory,
        at=at,
        next_at=at[:, -1] + 1,
    )
    pages = _Pages(lease, len(index), limit, sampling=sampling)
    _write(lease, prefix, pages, live, grown.last.logits[index], stop_ids=stop_ids, limit=limit)
    lines = pages.lines()
    return [lines[start : start + each] for start in range(0, len(lines), each)]


def _write(
    lease: Lease,
    prefix: Prefix,
    pages: _Pages,
    live: _Live,
    logits: Tensor | None,
    *,
    stop_ids: Tensor,
    limit: int,
) -> None:
    """Writes token after token until every row has ended."""
    for step in range(limit):
        assert logits is not None
        chosen = pages.choose(live.rows, logits, step)
        pages.close(live.rows, torch.isin(chosen, stop_ids))
        live, chosen = _without_finished(pages, live, chosen)
        if not live.rows.numel():
            break
        # The last token allowed is fed too, for its state; its logits are nobody's business.
        # Of a drawn answer nobody reads states, and its last token is not fed.
        if pages.states is None and step + 1 == limit:
            break
        logits = _feed(lease, prefix, pages, live, chosen, step, head=step + 1 < limit)


def _without_finished(pages: _Pages, live: _Live, chosen: Tensor) -> tuple[_Live, Tensor]:
    """The rows to go on with. A finished one may stay a while; what it writes is not counted."""
    # The one question of a step that a GPU ends its work for: between steps Python gets ahead.
    ended = (pages.length[live.rows] >= 0).cpu().numpy()
    if ended.sum() < max(1, _COMPACT_AT * len(ended)):
        return live, chosen
    index = sent((~ended).nonzero()[0], live.rows.device)
    live.memory.keep(index)
    kept = _Live(
        rows=live.rows[index],
        memory=live.memory,
        at=live.at[index],
        next_at=live.next_at[index],
    )
    return kept, chosen[index]


def _feed(
    lease: Lease, prefix: Prefix, pages: _Pages, live: _Live, chosen: Tensor, step: int, head: bool
) -> Tensor | None:
    """The logits after `chosen` was fed; its states go to the pages."""
    query_at = live.next_at[:, None]
    live.at = torch.cat([live.at, query_at], dim=1)
    live.next_at = live.next_at + 1
    sizes = [1] * len(query_at)
    layout = Layout(query_at, live.at, prefix_length=len(prefix), sizes=sizes)
    with nullcontext() if pages.mass is None else pages.mass.step(lease, live.rows):
        read = lease.run(chosen[:, None], layout, live.memory, head=head)
    if pages.states is not None:
        pages.states[live.rows, step] = read.states
    pages.step = step + 1
    return read.logits


class _Pages:
    """What is written, row by row, until the batch ends."""

    def __init__(
        self,
        lease: Lease,
        rows: int,
        limit: int,
        *,
        sampling: Sampling | None = None,
        mass: Mass | None = None,
    ) -> None:
        model = lease.model
        device = model.device
        shape = (rows, limit, model.blocks, model.parts.width)
        self.sampling, self.mass, self.states = sampling, mass, None
        self._likeliest = likeliest
        if lease.apart:
            from anchorscope.engine.fused.likeliest import likeliest as fused  # needs Triton

            self._likeliest = fused
        if sampling is None:
            self.states = torch.empty(shape, dtype=model.dtype, device=device)
        self.tokens = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(rows, limit, device=device)
        self.entropy = torch.zeros(rows, limit, device=device)
        self.length = torch.full((rows,), -1, device=device)  # -1: still being written
        self.step = 0

    def choose(self, rows: Tensor, logits: Tensor, step: int) -> Tensor:
        """The likeliest or the drawn token of each row, noted with its log-probability."""
        if self.sampling is None:
            chosen, own, entropy = self._likeliest(logits)
        else:
            log_probs = torch.log_softmax(logits.float(), dim=-1)
            at_step = self.sampling.uniforms.flatten(0, 1)[rows.cpu(), step]
            chosen = drawn(log_probs, at_step, self.sampling.temperature)
            own, entropy = log_probs.gather(1, chosen[:, None])[:, 0], entropies(log_probs)
        self.tokens[rows, step], self.log_probs[rows, step] = chosen, own
        self.entropy[rows, step] = entropy
        return chosen

    def close(self, rows: Tensor, stopped: Tensor) -> None:
        """Marks those of the rows that chose to stop as ended before the token just chosen."""
        length = self.length[rows]
        self.length[rows] = torch.where(stopped & (length < 0), self.step, length)

    def lines(self) -> tuple[Line, ...]:
        """The answers in the order of the prompts."""
        limit = self.tokens.shape[1]
        length = torch.where(self.length < 0, limit, self.length).tolist()
        finished = (self.length >= 0).tolist()
        tokens, log_probs = self.tokens.tolist(), self.log_probs.tolist()
        entropy = self.entropy.tolist()
        return tuple(
            Line(
                token_ids=tuple(tokens[row][:n]),
                log_probs=tuple(log_probs[row][:n]),
                entropies=tuple(entropy[row][:n]),
                first_entropy=entropy[row][0],
                finished=finished[row],
            )
            for row, n in enumerate(length)
        )
