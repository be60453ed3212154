"""Greedy answers, with the state of every answer token caught as it is fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorscope.engine.layout import Layout
from anchorscope.engine.lease import Lease
from anchorscope.engine.memory import Growing
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk

# Rows are taken out of the batch when this share of them has finished: a copy of the memory for
# every row that ends would cost more than it saves.
_COMPACT_AT = 0.25


@dataclass(frozen=True)
class Line:
    """One greedy answer: its tokens and how sure each was."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    first_entropy: float
    finished: bool


@dataclass(frozen=True)
class Written:
    """A batch of greedy answers, the states of all layers at their tokens, and their trunk."""

    lines: tuple[Line, ...]
    states: Tensor  # [row, token, layer, width], on the model's device
    trunk: Trunk
    also: Tensor | None  # [row, layer, width] at one more position of the prompts, if asked for


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
) -> Written:
    """Each prompt's greedy answer up to a stop token (left out) or the limit."""
    grown = grow_trunk(lease, prefix, prompts, room=limit, head=True, also_at=also_at)
    pages = _Pages(lease, len(prompts), limit)
    live = _Live(
        rows=torch.arange(len(prompts), device=lease.model.device),
        memory=grown.memory,
        at=grown.trunk.at,
        next_at=grown.trunk.at[:, -1] + 1,
    )
    logits = grown.last.logits
    for step in range(limit):
        assert logits is not None
        chosen = pages.choose(live.rows, logits, step)
        going = ~torch.isin(chosen, stop_ids)
        live, chosen = _without_finished(pages, live, chosen, going)
        if not live.rows.numel():
            break
        # The last token allowed is fed too, for its state; its logits are nobody's business.
        logits = _feed(lease, prefix, pages, live, chosen, step, head=step + 1 < limit)
    return Written(pages.lines(), pages.states, grown.trunk, grown.last.also)


def _without_finished(
    pages: _Pages, live: _Live, chosen: Tensor, going: Tensor
) -> tuple[_Live, Tensor]:
    """The rows to go on with. A finished one may stay a while; what it writes is not counted."""
    pages.close(live.rows[~going])
    ended = pages.length[live.rows] >= 0
    if int(ended.sum()) < max(1, _COMPACT_AT * len(ended)):
        return live, chosen
    index = (~ended).nonzero()[:, 0]
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
    layout = Layout(query_at, live.at, prefix_length=len(prefix))
    read = lease.run(chosen[:, None], layout, live.memory, head=head)
    pages.states[live.rows, step] = read.states
    pages.step = step + 1
    return read.logits


class _Pages:
    """What is written, row by row, until the batch ends."""

    def __init__(self, lease: Lease, rows: int, limit: int) -> None:
        model = lease.model
        device = model.device
        shape = (rows, limit, model.blocks, model.parts.width)
        self.states = torch.empty(shape, dtype=model.dtype, device=device)
        self.tokens = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(rows, limit, device=device)
        self.entropy = torch.zeros(rows, device=device)
        self.length = torch.full((rows,), -1, device=device)  # -1: still being written
        self.step = 0

    def choose(self, rows: Tensor, logits: Tensor, step: int) -> Tensor:
        """The likeliest token of each row, noted with its log-probability."""
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        best, chosen = log_probs.max(dim=-1)
        self.tokens[rows, step], self.log_probs[rows, step] = chosen, best
        if step == 0:
            self.entropy = -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(dim=-1)
        return chosen

    def close(self, rows: Tensor) -> None:
        """Marks rows as ended before the token just chosen."""
        still = self.length[rows] < 0
        self.length[rows[still]] = self.step

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
                first_entropy=entropy[row],
                finished=finished[row],
            )
            for row, n in enumerate(length)
        )
