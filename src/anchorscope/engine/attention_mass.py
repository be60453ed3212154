"""Attention mass: how much the probe position attends to each position, over blocks and heads.

On a CPU it is read while the answer is written, at each of its tokens, any of which may turn out to
be the probe position. On a GPU, where every further call makes a step longer, the answer is read
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.interventions import TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import Row, read_batch
from anchorscope.engine.trunk import Trunk


@dataclass(frozen=True)
class Mass:
    """The mass at each token of answers that are being written, step by step."""

    # The rows fed in a step, and their weights [row, key]: of the prefix, of the trunk's columns,
    # and of the answer's tokens so far.
    _steps: list[tuple[list[int], np.ndarray]] = field(default_factory=list)

    @contextmanager
    def step(self, lease: Lease, rows: Tensor) -> Iterator[None]:
        """A pass over the next token of these rows, which is watched."""
        seen = _Sum()
        lease.beside = seen.add
        try:
            yield
        finally:
            lease.beside = None
        self._steps.append((rows.tolist(), seen.mean(lease)))

    def at(self, row: int, token: int) -> np.ndarray:
        """The mass [key] at a token of a row's answer, from 0."""
        rows, mean = self._steps[token]
        return mean[rows.index(row)]


def comes_with_answers(lease: Lease) -> bool:
    """Whether the mass is read while answers are written."""
    return lease.model.device.type == "cpu"


def with_mass(
    lease: Lease,
    trunk: Trunk,
    marks: Sequence[TokenPositions | None],
    *,
    budget: Budget,
    known: Mass | None = None,
) -> list[TokenPositions | None]:
    """The same marks, each with the clean attention mass at its probe position.

    It is read from the model where it is not `known` from the time the answers were written.
    """
    rows = [_row(mark, number) for number, mark in enumerate(marks) if mark is not None]
    there = trunk.at.cpu().numpy() >= 0  # once: a GPU waits for every copy
    front, columns = len(trunk.prefix), trunk.at.shape[1]
    found = list(marks)
    for row, of in _read(lease, trunk, rows, budget) if known is None else _kept(known, rows):
        own, new = of[front : front + columns][there[row.number]], of[len(of) - len(row.ids) :]
        mark = marks[row.number]
        assert mark is not None
        mass = (*of[:front].tolist(), *own.tolist(), *new.tolist())
        found[row.number] = replace(mark, mass=mass)
    return found


def _row(positions: TokenPositions, number: int) -> Row:
    """The answer's tokens on the clean trunk: all that lies between it and the probe position."""
    at = tuple(range(positions.answer_at, len(positions.ids)))
    return Row(number, CLEAN, (), positions.ids[positions.answer_at :], at, range(0))


def _kept(known: Mass, rows: Sequence[Row]) -> Iterator[tuple[Row, np.ndarray]]:
    """Each row with the mass [key] that was read when its last token was written."""
    for row in rows:
        yield row, known.at(row.number, len(row.ids) - 1)


def _read(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], budget: Budget
) -> Iterator[tuple[Row, np.ndarray]]:
    """Each row with the mass [key] at its last token, which is read once more."""

    def work(batch: list[Row]) -> np.ndarray:
        seen = _Sum()
        before, lease.look = lease.look, seen.add
        try:
            read_batch(lease, trunk, batch)
        finally:
            lease.look = before
        return seen.mean(lease)

    how = {"length": lambda row: len(row.ids), "then": lambda row: row.number, "budget": budget}
    for batch, mass in in_batches(rows, work, **how):
        yield from zip(batch, mass, strict=True)


class _Sum:
    """The weights of each row's last query [row, key], mean over heads, summed over blocks."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    def add(self, weights: Tensor) -> None:
        """Takes those of a block, [row, head, query, key]."""
        now = weights[:, :, -1].float().mean(dim=1)
        self._total = now if self._total is None else self._total + now.to(self._total.device)

    def mean(self, lease: Lease) -> np.ndarray:
        """The mean over blocks, [row, key]."""
        assert self._total is not None
        return (self._total / lease.model.blocks).cpu().numpy()
