"""Key-value caches of a pass: grown while decoding, or forked from a trunk.

The prefix, computed once, is copied into every row's buffer in front of its own keys: a copy the
size of the prefix, once a batch. On a GPU a kernel reads it in place (`attend_segments` in
`kernels.py`); joining it in every step took a quarter of a decoding pass there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anchorscope.engine.layout import Layout

Pair = tuple[Tensor, Tensor]  # keys and values, [row, key head, position, head width]


class Segments(NamedTuple):
    """The keys and values of a pass in up to three places, for a kernel that reads them there."""

    front: Pair | None  # the prefix, [1, key head, position, head width]
    middle: Pair  # [row or question, key head, position, head width]
    rows: Tensor  # which of `middle` each row has, [row]
    own: Pair | None  # the rows' own, packed: [1, token, key head, head width]


class GrowingCache:
    """A key-value cache in buffers of fixed capacity, so that a step copies no earlier keys.

    `segmented`: the prefix stays in its own place, for a kernel that reads it there.
    """

    def __init__(
        self,
        blocks: int,
        capacity: int,
        prefix: Sequence[Pair] | None = None,
        *,
        segmented: bool = False,
    ) -> None:
        self.segmented, self._prefix, self._capacity = segmented, prefix, capacity
        self._front = 0 if segmented or prefix is None else prefix[0][0].shape[2]
        self._pairs: list[Pair | None] = [None] * blocks
        self._length = [self._front] * blocks

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block so far, [row, key head, prefix + length, head width]."""
        key, value = self._grow(block, key, value)
        if not self.segmented or self._prefix is None:
            return key, value
        front = [part.expand(len(key), -1, -1, -1) for part in self._prefix[block]]
        return torch.cat([front[0], key], dim=2), torch.cat([front[1], value], dim=2)

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """A block's keys and values in segments; new ones are [1, key head, token, head width]."""
        pair = self._grow(block, layout.in_rows(key), layout.in_rows(value))
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, pair, layout.rows, own=None)

    def _grow(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """Append new keys and values to a block's buffers; returns all that they hold."""
        pair, start = self._pairs[block], self._length[block]
        if pair is None:
            room = self._front + self._capacity
            empty = [x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (key, value)]
            pair = empty[0], empty[1]
            if self._front and self._prefix is not None:
                for buffer, front in zip(pair, self._prefix[block], strict=True):
                    buffer[:, :, : self._front] = front
            self._pairs[block] = pair
        stop = self._length[block] = start + key.shape[2]
        pair[0][:, :, start:stop], pair[1][:, :, start:stop] = key, value
        return pair[0][:, :, :stop], pair[1][:, :, :stop]

    def own(self, length: int) -> tuple[Pair, ...]:
        """Copies of each block's first `length` keys and values after the prefix."""
        start, stop = self._front, self._front + length
        pairs = [pair for pair in self._pairs if pair is not None]
        return tuple((k[:, :, start:stop].clone(), v[:, :, start:stop].clone()) for k, v in pairs)

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these, block by block: two whole copies are never held."""
        for block, pair in enumerate(self._pairs):
            if pair is not None:
                self._pairs[block] = (_select(pair[0], index), _select(pair[1], index))


class ForkedCache:
    """A key-value cache for rows forked from a trunk, which they leave unchanged."""

    def __init__(
        self,
        trunk: Sequence[Pair],
        rows: Tensor,
        prefix: Sequence[Pair] | None = None,
        *,
        segmented: bool = False,
    ) -> None:
        self.segmented, self._trunk, self._rows, self._prefix = segmented, trunk, rows, prefix

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """Join the prefix, the trunk's keys and values of each row, and the new ones."""
        joined = []
        for n, own in enumerate((key, value)):
            parts = [_select(self._trunk[block][n], self._rows), own]
            if self._prefix is not None:
                parts.insert(0, self._prefix[block][n].expand(len(own), -1, -1, -1))
            joined.append(torch.cat(parts, dim=2))
        return joined[0], joined[1]

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """A block's keys and values in segments; new ones are [1, key head, token, head width]."""
        own = key.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, self._trunk[block], self._rows, own)


KVCache = GrowingCache | ForkedCache


def _select(pairs: Tensor, rows: Tensor) -> Tensor:
    """Select rows of a tensor, which may be on another device than the row numbers."""
    return pairs.index_select(0, rows.to(pairs.device))  # a third of the time of pairs[rows]
