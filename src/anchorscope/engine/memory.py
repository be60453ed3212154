"""Keys and values that outlive a pass: grown while decoding, or forked from a trunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # keys and values, [row, key head, position, head width]


class Memory(Protocol):
    """What a row's attention sees besides the prefix."""

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """The keys and values of a block with these new ones behind the old."""
        ...


class Growing:
    """Keys and values written into buffers of fixed capacity, so that a step copies nothing old."""

    def __init__(self, blocks: int, capacity: int) -> None:
        self.capacity = capacity
        self._pairs: list[Pair | None] = [None] * blocks
        self._length = [0] * blocks

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block so far, [row, key head, length, head width]."""
        pair = self._pairs[block] or (self._buffer(key), self._buffer(value))
        start = self._length[block]
        stop = start + key.shape[2]
        pair[0][:, :, start:stop], pair[1][:, :, start:stop] = key, value
        self._pairs[block], self._length[block] = pair, stop
        return self.pair(block, stop)

    def pair(self, block: int, length: int) -> Pair:
        """The first `length` keys and values of a block."""
        pair = self._pairs[block]
        assert pair is not None, "nothing was written to this block yet"
        return pair[0][:, :, :length], pair[1][:, :, :length]

    def rows(self, index: Tensor) -> Growing:
        """A copy with these rows only; the original stays whole."""
        copy = Growing(len(self._pairs), self.capacity)
        copy._pairs = [pair and (pair[0][index], pair[1][index]) for pair in self._pairs]
        copy._length = list(self._length)
        return copy

    def _buffer(self, like: Tensor) -> Tensor:
        rows, heads, _, width = like.shape
        return like.new_empty(rows, heads, self.capacity, width)


class Forked:
    """Rows that leave a trunk: nothing is kept, so one block's copy lives at a time."""

    def __init__(self, trunk: Sequence[Pair], rows: Tensor) -> None:
        self._trunk, self._rows = trunk, rows

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """The trunk's keys and values of each row, then the new ones."""
        keys, values = self._trunk[block]
        return (
            torch.cat([keys[self._rows], key], dim=2),
            torch.cat([values[self._rows], value], dim=2),
        )
