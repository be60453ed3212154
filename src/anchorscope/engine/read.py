"""Rows to states on the host: batches of like rows, and windows of blocks in one pass.

A window that starts at block s leaves the layers below s as they are, so it can start from the
clean states there. One clean row and w slots go through the blocks together. Before block s the
slot s mod w is set back to the clean row: its window begins. After block s + w - 1 it holds the
state of that layer under that window, and is free for the next. The first window also gives the
layers 1..w-1, whose windows are cut short at block 1. So a sweep over all k costs w + 1 rows of
suffix tokens instead of one pass for each k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.attention import WindowSlots
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import Trunk
from anchorscope.engine.interventions import TokenPositions, window_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import LOGIT_BYTES, Row, read_batch, read_with_output


def read_rows(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], *, budget: Budget, depth: int | None = None
) -> Iterator[tuple[list[Row], Tensor]]:
    """Rows with their states [row, layer, width], a batch at a time; of `depth` layers or all."""
    for (width, _), group in groupby(sorted(rows, key=_kind), key=_kind):

        def work(batch: list[Row], width: int = width) -> Tensor:
            if width:
                return read_windows(lease, trunk, batch, width)[:, :depth]
            return read_batch(lease, trunk, batch, depth=depth)

        def length(row: Row, width: int = width) -> int:
            return len(row.ids) * (1 + width)

        yield from in_batches(
            group, work, length=length, then=lambda row: row.number, budget=budget
        )


def read_rows_with_output(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], *, budget: Budget
) -> Iterator[tuple[list[Row], Tensor, Tensor | None]]:
    """Rows with their states, and the model's own output [row, 3] of passes that have one."""
    with_output = [row for row in rows if row.intervention.has_output]
    others = [row for row in rows if not row.intervention.has_output]
    # A pass takes so many tokens, and so many bytes of logits: what an answer token counts for.
    share = budget.tokens * _logit_bytes(lease) / LOGIT_BYTES

    def length(row: Row) -> int:
        return max(len(row.ids), round(share * row.answer))

    for _, group in groupby(sorted(with_output, key=_kind), key=_kind):
        for batch, (states, output) in in_batches(
            group,
            lambda batch: read_with_output(lease, trunk, batch),
            length=length,
            then=lambda row: row.number,
            budget=budget,
        ):
            yield batch, states, output
    for batch, states in read_rows(lease, trunk, others, budget=budget):
        yield batch, states, None


def _logit_bytes(lease: Lease) -> int:
    """Bytes of the logits of one token."""
    vocabulary = lease.model.lm.config.get_text_config().vocab_size
    return vocabulary * lease.model.dtype.itemsize


def _kind(row: Row) -> tuple[int, str]:
    """Rows that go together; those cut after the softmax need its weights written out, slowly."""
    return _width(row), row.intervention.where


def _width(row: Row) -> int:
    """How many blocks a row's window has; 0 for a cut in all of them, or in none."""
    return 0 if row.intervention.answer_only else window_of(row.intervention.layers) or 0


def read_windows(lease: Lease, trunk: Trunk, rows: Sequence[Row], width: int) -> Tensor:
    """States [row, layer, width]: layer k under the cut in the `width` blocks that end at k."""
    blocks = lease.model.blocks
    clean = [replace(row, blocks=range(0)) for row in rows]
    everywhere = [replace(row, blocks=range(blocks)) for row in rows]
    tokens = sum(len(row.ids) for row in rows)
    states = read_batch(
        lease, trunk, [*clean, *everywhere * width], slots=WindowSlots(tokens, width)
    )
    states = states.view(1 + width, len(rows), blocks, -1)
    # From 0: the window that ends at block k began at k - width + 1, or with the first block.
    slots = [1 + max(0, k - width + 1) % width for k in range(blocks)]
    return torch.stack([states[slot, :, k] for k, slot in enumerate(slots)], dim=1)


# --- Attention mass: how much the probe position attends to each position ---


def with_mass(
    lease: Lease, trunk: Trunk, marks: Sequence[TokenPositions | None], *, budget: Budget
) -> list[TokenPositions | None]:
    """Add to each mark the clean attention mass at its probe position, mean over heads and blocks.

    The answer's tokens are read once more on the clean trunk: which of them is the probe position
    is known only when the answer is whole.
    """
    rows = [_clean_row(mark, number) for number, mark in enumerate(marks) if mark is not None]
    there = trunk.at.cpu().numpy() >= 0  # once: a GPU waits for every copy
    front, columns = len(trunk.prefix), trunk.at.shape[1]
    found = list(marks)
    for batch, masses in in_batches(
        rows,
        partial(_attention_mass, lease, trunk),
        length=lambda row: len(row.ids),
        then=lambda row: row.number,
        budget=budget,
    ):
        for row, mass in zip(batch, masses, strict=True):
            own = mass[front : front + columns][there[row.number]]
            new = mass[len(mass) - len(row.ids) :]
            mark = marks[row.number]
            assert mark is not None
            by_position = (*mass[:front].tolist(), *own.tolist(), *new.tolist())
            found[row.number] = replace(mark, mass=by_position)
    return found


def _clean_row(positions: TokenPositions, number: int) -> Row:
    """The answer's tokens on the clean trunk: all tokens up to the probe position."""
    at = tuple(range(positions.answer_at, len(positions.ids)))
    return Row(number, CLEAN, (), positions.ids[positions.answer_at :], at, range(0))


def _attention_mass(lease: Lease, trunk: Trunk, batch: Sequence[Row]) -> np.ndarray:
    """The weights of each row's last query [row, key], mean over heads and blocks."""
    total: list[Tensor] = []

    def add(weights: Tensor) -> None:  # of a block, [row, head, query, key]
        now = weights[:, :, -1].float().mean(dim=1)
        total[:] = [total[0] + now.to(total[0].device) if total else now]

    before, lease.observer = lease.observer, add
    try:
        read_batch(lease, trunk, batch)
    finally:
        lease.observer = before
    return (total[0] / lease.model.blocks).cpu().numpy()
