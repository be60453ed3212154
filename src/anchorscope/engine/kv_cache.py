"""Keys and values that a pass finds in place: grown while decoding, or forked from a trunk.

The prefix, computed once, is copied into every row's buffer in front of its own keys: a copy the
size of the prefix, once a batch. Joining it in every step took a quarter of a decoding pass on a
GPU. There a kernel reads it in place (`attend_segments` in `kernels.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class KVCache(Protocol):
    """What a row's attention sees: the prefix, what came before, and what is new."""

    segmented: bool  # whether the prefix stays in its own place, for a kernel that reads it there

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block, these new ones last."""
        ...


class GrowingCache:
    """Keys and values written into buffers of fixed capacity, so that a step copies nothing old."""

    def __init__(
        self,
        blocks: int,
        capacity: int,
        prefix: Sequence[Pair] | None = None,
        *,
        segmented: bool = False,
    ) -> None:
        self.segmented, self._prefix = segmented, prefix
        self._front = 0 if segmented else _prefix_length(prefix)
        self._capacity = capacity
        self._pairs: list[Pair | None] = [None] * blocks
        self._length = [self._front] * blocks

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block so far, [row, key head, prefix + length, head width]."""
        pair = self._grow(block, key, value)
        if not self.segmented or self._prefix is None:
            return pair
        keys, values = self._prefix[block]
        return _behind(keys, pair[0]), _behind(values, pair[1])

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """The same for packed keys and values [1, key head, token, head width], left in place."""
        pair = self._grow(block, layout.in_rows(key), layout.in_rows(value))
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, pair, layout.rows, own=None)

    def _grow(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """What the buffers of a block hold, these new ones last."""
        pair = self._pairs[block]
        if pair is None:
            pair = _buffers(key, value, self._front + self._capacity)
            if self._front and self._prefix is not None:
                for buffer, front in zip(pair, self._prefix[block], strict=True):
                    buffer[:, :, : self._front] = front
        start = self._length[block]
        stop = start + key.shape[2]
        pair[0][:, :, start:stop], pair[1][:, :, start:stop] = key, value
        self._pairs[block], self._length[block] = pair, stop
        return pair[0][:, :, :stop], pair[1][:, :, :stop]

    def own(self, block: int, length: int) -> Pair:
        """The first `length` keys and values of a block behind the prefix."""
        pair = self._pairs[block]
        assert pair is not None, "nothing was written to this block yet"
        stop = self._front + length
        return pair[0][:, :, self._front : stop], pair[1][:, :, self._front : stop]

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these, block by block: two whole copies are never held."""
        for block, pair in enumerate(self._pairs):
            if pair is not None:
                self._pairs[block] = (_select(pair[0], index), _select(pair[1], index))


class ForkedCache:
    """Rows that leave a trunk. Nothing is kept: blocks of one shape share a pair of buffers.

    With `gradients` every block has tensors of its own, which must stay as they are.
    """

    def __init__(
        self,
        trunk: Sequence[Pair],
        rows: Tensor,
        prefix: Sequence[Pair] | None = None,
        *,
        segmented: bool = False,
        gradients: bool = False,
    ) -> None:
        self.segmented, self._gradients = segmented, gradients
        self._trunk, self._rows, self._prefix = trunk, rows, prefix
        self._front = _prefix_length(prefix)
        self._buffers: dict[object, Pair] = {}

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """The prefix, the trunk's keys and values of each row, then the new ones."""
        front = self._front
        stop = front + self._trunk[block][0].shape[2]
        kind = (block if self._gradients else None, key.shape, value.shape, key.device)
        if kind not in self._buffers:
            self._buffers[kind] = _buffers(key, value, stop + key.shape[2])
        pair = self._buffers[kind]
        for which, (buffer, new) in enumerate(zip(pair, (key, value), strict=True)):
            if self._prefix is not None:
                buffer[:, :, :front] = self._prefix[block][which]
            buffer[:, :, front:stop] = _select(self._trunk[block][which], self._rows)
            buffer[:, :, stop:] = new
        return pair

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """The same for packed keys and values [1, key head, token, head width], left in place."""
        own = key.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, self._trunk[block], self._rows, own)


def _prefix_length(prefix: Sequence[Pair] | None) -> int:
    return 0 if prefix is None else prefix[0][0].shape[2]


def _behind(front: Tensor, own: Tensor) -> Tensor:
    """Keys or values [row, key head, position, head width] behind those of the prefix."""
    return torch.cat([front.expand(len(own), -1, -1, -1), own], dim=2)


def _select(pairs: Tensor, rows: Tensor) -> Tensor:
    """These rows; blocks may be on several devices, and the numbers of rows on one of them."""
    return pairs.index_select(0, rows.to(pairs.device))  # a third of the time of pairs[rows]


def _buffers(key: Tensor, value: Tensor, capacity: int) -> Pair:
    """Empty buffers for rows like these, with room for so many positions."""
    empty = [like.new_empty(*like.shape[:2], capacity, like.shape[3]) for like in (key, value)]
    return empty[0], empty[1]
