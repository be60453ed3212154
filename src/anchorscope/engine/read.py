"""Rows to states on the host: batches of like rows, and windows of blocks in one pass.

A window that starts at block s leaves the layers below s as they are, so it can start from the
clean states there. One clean row and w slots go through the blocks together. Before block s the
slot s mod w is set back to the clean row: its window begins. After block s + w - 1 it holds the
state of that layer under that window, and is free for the next. The first window also gives the
layers 1..w-1, whose windows are cut short at block 1. So a sweep over all k costs w + 1 rows of
suffix tokens instead of one pass for each k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.attention import InputEdit
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import AttentionMass, AttentionSum, Trunk
from anchorscope.engine.interventions import TokenPositions, window_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import LOGIT_BYTES, Row, read_batch, read_with_output

T = TypeVar("T")


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


def read_from_clean(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], *, budget: Budget, depth: int
) -> Iterator[tuple[list[Row], Tensor]]:
    """Rows with their states [row, layer, width], each started at the first block it is cut in.

    What comes before is the clean row's: every question must have one (no heads cut) among them.
    """
    clean = [row for row in rows if row.intervention.heads == ()]
    others = sorted((row for row in rows if row.intervention.heads != ()), key=first_cut)
    known = CleanStarts(lease, trunk, depth, {first_cut(row) for row in others})
    yield from _batches(clean, known.read, budget)
    for start, group in groupby(others, key=first_cut):
        if start in known.starts:
            yield from _batches(group, lambda b, start=start: known.begin(b, start), budget)
        else:
            yield from read_rows(lease, trunk, list(group), budget=budget, depth=depth)


def _batches(
    rows: Iterable[Row], work: Callable[[list[Row]], T], budget: Budget
) -> Iterator[tuple[list[Row], T]]:
    """Each batch of rows with what `work` makes of it."""
    return in_batches(
        rows, work, length=lambda row: len(row.ids), then=lambda row: row.number, budget=budget
    )


def first_cut(row: Row) -> int:
    """The first block (from 0) in which a row loses edges in some head."""
    heads = row.intervention.heads
    return min(block for block, _ in heads) - 1 if heads else 0


class CleanStarts:
    """Clean inputs of blocks from which other rows can start, and a proof that they suffice."""

    def __init__(self, lease: Lease, trunk: Trunk, depth: int, starts: set[int]) -> None:
        self._lease, self._trunk, self._depth = lease, trunk, depth
        shared = any(getattr(a, "is_kv_shared_layer", False) for a in lease.model.parts.attentions)
        # Keys of an earlier block may be used in a later one, which then needs that block as well.
        self.starts = set() if shared else starts - {0}
        self._inputs: dict[tuple[int, int], Tensor] = {}  # start and row's number: [token, width]
        self._states: dict[int, Tensor] = {}  # row's number: [layer, width]

    def read(self, batch: list[Row]) -> Tensor:
        """The clean states [row, layer, width]; what others begin with is kept."""
        first = not self._states
        keeper = _InputRecorder(self.starts)
        states = self._pass(batch, keeper)
        sizes = [len(row.ids) for row in batch]
        for start, packed in keeper.packed.items():
            for row, tokens in zip(batch, packed[0].split(sizes), strict=True):
                self._inputs[start, row.number] = tokens
        self._states |= dict(zip((row.number for row in batch), states, strict=True))
        if first:
            self.starts = {start for start in self.starts if self._repeats(batch[0], start)}
        return states

    def begin(self, batch: list[Row], start: int) -> Tensor:
        """The states [row, layer, width] of rows whose first cut is in block `start` (from 0)."""
        inputs = torch.cat([self._inputs[start, row.number] for row in batch])[None]
        states = self._pass(batch, _InputReplacer(start, inputs), start)
        clean = torch.stack([self._states[row.number][:start] for row in batch])
        return torch.cat([clean, states[:, start:]], dim=1)

    def _repeats(self, row: Row, start: int) -> bool:
        """Whether a clean row that starts there ends alike, bit for bit: nothing flows past it."""
        keeper = _InputRecorder({start})
        whole = self._pass([row], keeper)
        try:
            again = self._pass([row], _InputReplacer(start, keeper.packed[start]), start)
        except (AttributeError, IndexError, KeyError, TypeError):
            return False  # a later block asks for something that an earlier one left behind
        return torch.equal(again[:, start:], whole[:, start:])

    def _pass(self, batch: list[Row], change: InputEdit, start: int = 0) -> Tensor:
        lease, trunk = self._lease, self._trunk
        return read_batch(lease, trunk, batch, input_edit=change, depth=self._depth, start=start)


class _InputRecorder:
    """Record the inputs of the blocks `at`, and change nothing."""

    def __init__(self, at: set[int]) -> None:
        self._at = at
        self.packed: dict[int, Tensor] = {}

    def __call__(self, block: int, hidden: Tensor) -> Tensor:
        if block in self._at:
            self.packed[block] = hidden
        return hidden

    def keys(self, block: int, donor: int, packed: Tensor) -> Tensor:
        return packed


class _InputReplacer:
    """Replace the input of a block by a recorded one, [1, token, width]."""

    def __init__(self, block: int, packed: Tensor) -> None:
        self._block, self._packed = block, packed

    def __call__(self, block: int, hidden: Tensor) -> Tensor:
        return self._packed if block == self._block else hidden

    def keys(self, block: int, donor: int, packed: Tensor) -> Tensor:
        return packed


def read_windows(lease: Lease, trunk: Trunk, rows: Sequence[Row], width: int) -> Tensor:
    """States [row, layer, width]: layer k under the cut in the `width` blocks that end at k."""
    blocks = lease.model.blocks
    clean = [replace(row, blocks=range(0)) for row in rows]
    everywhere = [replace(row, blocks=range(blocks)) for row in rows]
    states = read_batch(
        lease, trunk, [*clean, *everywhere * width], input_edit=_WindowSlots(rows, width)
    )
    states = states.view(1 + width, len(rows), blocks, -1)
    # From 0: the window that ends at block k began at k - width + 1, or with the first block.
    slots = [1 + max(0, k - width + 1) % width for k in range(blocks)]
    return torch.stack([states[slot, :, k] for k, slot in enumerate(slots)], dim=1)


class _WindowSlots:
    """Reset the slot whose window begins at a block to the clean rows."""

    def __init__(self, rows: Sequence[Row], width: int) -> None:
        self.tokens = sum(len(row.ids) for row in rows)
        self.width = width

    def __call__(self, block: int, hidden: Tensor) -> Tensor:
        """The packed hidden states [1, token, width] that the block is given."""
        return self._cleaned(hidden, [1 + block % self.width], dim=1)

    def keys(self, block: int, donor: int, packed: Tensor) -> Tensor:
        """The donor's packed keys or values [1, key head, token, width] as a block sees them.

        A slot whose window began after the donor ran must find the clean rows' keys there.
        """
        begun = range(max(donor + 1, block - self.width + 1), block + 1)
        return self._cleaned(packed, [1 + start % self.width for start in begun], dim=2)

    def _cleaned(self, packed: Tensor, slots: Sequence[int], dim: int) -> Tensor:
        """The same packed things, with the clean rows' in the place of these slots'."""
        packed = packed.clone()
        clean = packed.narrow(dim, 0, self.tokens)
        for slot in slots:
            packed.narrow(dim, self.tokens * slot, self.tokens).copy_(clean)
        return packed


# --- Attention mass: how much the probe position attends to each position ---

# On a CPU it is read while the answer is written, at each of its tokens, any of which may turn out
# to be the probe position (`AttentionMass`). On a GPU, where every further call makes a step
# longer, the answer is read again.


def reads_mass_while_decoding(lease: Lease) -> bool:
    """Whether the mass is read while answers are written."""
    return lease.model.device.type == "cpu"


def with_mass(
    lease: Lease,
    trunk: Trunk,
    marks: Sequence[TokenPositions | None],
    *,
    budget: Budget,
    known: AttentionMass | None = None,
) -> list[TokenPositions | None]:
    """Add to each mark the clean attention mass at its probe position.

    It is read from the model where it is not `known` from the time the answers were written.
    """
    rows = [_row(mark, number) for number, mark in enumerate(marks) if mark is not None]
    there = trunk.at.cpu().numpy() >= 0  # once: a GPU waits for every copy
    front, columns = len(trunk.prefix), trunk.at.shape[1]
    found = list(marks)
    for row, mass in _read(lease, trunk, rows, budget) if known is None else _kept(known, rows):
        own = mass[front : front + columns][there[row.number]]
        new = mass[len(mass) - len(row.ids) :]
        mark = marks[row.number]
        assert mark is not None
        by_position = (*mass[:front].tolist(), *own.tolist(), *new.tolist())
        found[row.number] = replace(mark, mass=by_position)
    return found


def _row(positions: TokenPositions, number: int) -> Row:
    """The answer's tokens on the clean trunk: all tokens up to the probe position."""
    at = tuple(range(positions.answer_at, len(positions.ids)))
    return Row(number, CLEAN, (), positions.ids[positions.answer_at :], at, range(0))


def _kept(known: AttentionMass, rows: Sequence[Row]) -> Iterator[tuple[Row, np.ndarray]]:
    """Each row with the mass [key] that was read when its last token was written."""
    for row in rows:
        yield row, known.at(row.number, len(row.ids) - 1)


def _read(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], budget: Budget
) -> Iterator[tuple[Row, np.ndarray]]:
    """Each row with the mass [key] at its last token, which is read once more."""

    def work(batch: list[Row]) -> np.ndarray:
        total = AttentionSum()
        before, lease.observer = lease.observer, total.add
        try:
            read_batch(lease, trunk, batch)
        finally:
            lease.observer = before
        return total.mean(lease)

    for batch, mass in _batches(rows, work, budget):
        yield from zip(batch, mass, strict=True)
