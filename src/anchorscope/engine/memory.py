"""Keys and values that a pass finds in place: grown while decoding, or forked from a trunk.

The prefix, computed once, is laid into every row's buffer in front of its own keys: a copy the
size of the prefix, once a batch. Joining it anew in every step took a quarter of a decoding pass
on a GPU. A kernel on a GPU reads it where it lies (`fused/segments.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from anchorscope.engine.layout import Layout

Pair = tuple[Tensor, Tensor]  # keys and values, [row, key head, position, head width]


class Segments(NamedTuple):
    """The keys and values of a pass where they lie, for a kernel that reads them there."""

    front: Pair | None  # the prefix, [1, key head, position, head width]
    middle: Pair  # [row or question, key head, position, head width]
    rows: Tensor  # which of `middle` each row has, [row]
    own: Pair | None  # the rows' own, packed: [1, token, key head, head width]


class Memory(Protocol):
    """What a row's attention sees: the prefix, what came before, and what is new."""

    apart: bool  # whether the prefix is left where it lies, for a kernel that reads it there

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block, these new ones last."""
        ...


class Growing:
    """Keys and values written into buffers of fixed capacity, so that a step copies nothing old."""

    def __init__(
        self,
        blocks: int,
        capacity: int,
        prefix: Sequence[Pair] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.apart, self._prefix = apart, prefix
        self._front = 0 if apart else prefix_length(prefix)
        self._capacity = capacity
        self._pairs: list[Pair | None] = [None] * blocks
        self._length = [self._front] * blocks

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block so far, [row, key head, prefix + length, head width]."""
        pair = self._grown(block, key, value)
        if not self.apart or self._prefix is None:
            return pair
        return _behind(self._prefix[block][0], pair[0]), _behind(self._prefix[block][1], pair[1])

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """The same for packed keys and values [1, key head, token, head width], left in place."""
        pair = self._grown(block, layout.in_rows(key), layout.in_rows(value))
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, pair, layout.rows, own=None)

    def _grown(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """What the buffers of a block hold, these new ones last."""
        pair = self._pairs[block] or self._begin(block, key, value)
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
        """Lets go of all rows but these, block by block: two whole copies are never held."""
        for block, pair in enumerate(self._pairs):
            if pair is not None:
                self._pairs[block] = (_taken(pair[0], index), _taken(pair[1], index))

    def _begin(self, block: int, key: Tensor, value: Tensor) -> Pair:
        prefix = None if self._prefix is None or self.apart else self._prefix[block]
        return with_prefix(key, value, prefix, self._front + self._capacity)


class Forked:
    """Rows that leave a trunk. Nothing is kept: blocks of one shape share a pair of buffers."""

    def __init__(
        self,
        trunk: Sequence[Pair],
        rows: Tensor,
        prefix: Sequence[Pair] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.apart = apart
        self._trunk, self._rows, self._prefix = trunk, rows, prefix
        self._front = prefix_length(prefix)
        self._buffers: dict[object, Pair] = {}

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """The prefix, the trunk's keys and values of each row, then the new ones."""
        front = self._front
        stop = front + self._trunk[block][0].shape[2]
        kind = (key.shape, value.shape, key.device)
        if kind not in self._buffers:
            self._buffers[kind] = with_prefix(key, value, None, stop + key.shape[2])
        pair = self._buffers[kind]
        for which, (buffer, new) in enumerate(zip(pair, (key, value), strict=True)):
            if self._prefix is not None:
                buffer[:, :, :front] = self._prefix[block][which]
            buffer[:, :, front:stop] = _taken(self._trunk[block][which], self._rows)
            buffer[:, :, stop:] = new
        return pair

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """The same for packed keys and values [1, key head, token, head width], left in place."""
        own = key.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, self._trunk[block], self._rows, own)


class Joined:
    """Rows that leave a trunk, joined anew in each block: gradients need keys left as they are."""

    apart = False

    def __init__(
        self, trunk: Sequence[Pair], rows: Tensor, prefix: Sequence[Pair] | None = None
    ) -> None:
        self._trunk, self._rows, self._prefix = trunk, rows, prefix

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """The prefix, the trunk's keys and values of each row, then the new ones."""
        pair = [self._joined(block, which, new) for which, new in enumerate((key, value))]
        return pair[0], pair[1]

    def _joined(self, block: int, which: int, new: Tensor) -> Tensor:
        own = torch.cat([_taken(self._trunk[block][which], self._rows), new], dim=2)
        return own if self._prefix is None else _behind(self._prefix[block][which], own)


def prefix_length(prefix: Sequence[Pair] | None) -> int:
    """How many tokens the prefix holds."""
    return 0 if prefix is None else prefix[0][0].shape[2]


def with_prefix(key: Tensor, value: Tensor, prefix: Pair | None, capacity: int) -> Pair:
    """Empty buffers for rows like these, with the prefix in front where there is one."""
    pair = (_buffer(key, capacity), _buffer(value, capacity))
    if prefix is not None:
        for buffer, front in zip(pair, prefix, strict=True):
            buffer[:, :, : front.shape[2]] = front
    return pair


def _behind(front: Tensor, own: Tensor) -> Tensor:
    """Keys or values [row, key head, position, head width] behind those of the prefix."""
    return torch.cat([front.expand(len(own), -1, -1, -1), own], dim=2)


def _taken(of: Tensor, rows: Tensor) -> Tensor:
    """These rows; blocks may lie on several devices, and the numbers of rows on one of them."""
    return of.index_select(0, rows.to(of.device))  # on a CPU a third of the time of of[rows]


def _buffer(like: Tensor, capacity: int) -> Tensor:
    rows, heads, _, width = like.shape
    return like.new_empty(rows, heads, capacity, width)
