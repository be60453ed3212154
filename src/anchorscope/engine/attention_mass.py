"""Attention mass: how much the probe position attends to each position, over blocks and heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from anchorscope import ranks
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.interventions import TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import Row, read_batch
from anchorscope.engine.trunk import Trunk


def with_mass(
    lease: Lease, trunk: Trunk, marks: Sequence[TokenPositions | None], *, budget: Budget
) -> list[TokenPositions | None]:
    """The same marks, each with the clean attention mass at its probe position."""
    rows = [_row(m, number) for number, m in enumerate(marks) if m is not None]
    found = list(marks)
    options = {"length": lambda row: len(row.ids), "then": lambda row: row.number}
    for batch, mass in in_batches(rows, lambda b: _mass(lease, trunk, b), **options, budget=budget):
        for row, of in zip(batch, mass, strict=True):
            mark = marks[row.number]
            assert mark is not None
            found[row.number] = replace(mark, mass=of)
    return found


def _row(positions: TokenPositions, number: int) -> Row:
    """The answer's tokens on the clean trunk: all that lies between it and the probe position."""
    at = tuple(range(positions.answer_at, len(positions.ids)))
    return Row(number, CLEAN, (), positions.ids[positions.answer_at :], at, range(0))


def _mass(lease: Lease, trunk: Trunk, batch: Sequence[Row]) -> list[tuple[float, ...]]:
    """Mean weights from each row's last token to the positions 0, 1, ... up to itself."""
    with _summed(lease) as seen:
        read_batch(lease, trunk, batch)
    # A mean over heads in each process, and of these over the processes.
    total = ranks.summed(seen[0]) / ranks.count()
    mean = (total / lease.model.blocks).cpu().numpy()
    front, columns = len(trunk.prefix), trunk.at.shape[1]
    there = trunk.at.cpu().numpy() >= 0  # once: a GPU waits for every copy
    out = []
    for row, of in zip(batch, mean, strict=True):
        own = of[front : front + columns][there[row.number]]
        new = of[len(of) - len(row.ids) :]
        out.append((*of[:front].tolist(), *own.tolist(), *new.tolist()))
    return out


@contextmanager
def _summed(lease: Lease) -> Iterator[list[Tensor]]:
    """The last query's weights [row, key], mean over heads, summed over blocks."""
    total: list[Tensor] = []

    def add(weights: Tensor) -> None:
        now = weights[:, :, -1].float().mean(dim=1)
        total[:] = [now if not total else total[0] + now.to(total[0].device)]

    before, lease.look = lease.look, add
    try:
        yield total
    finally:
        lease.look = before
