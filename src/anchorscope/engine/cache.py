"""Keys and values of a pass: kept in one buffer while decoding, or forked from a trunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class Growing(DynamicLayer):
    """The keys and values of one block, written into a buffer of fixed capacity."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.length = capacity, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        """All keys and values so far, [row, key head, length, head width]."""
        if not self.is_initialized:
            shape = list(key_states.shape)
            shape[2] = self.capacity
            self.keys = key_states.new_empty(shape)
            self.values = value_states.new_empty([*shape[:3], value_states.shape[-1]])
            self.is_initialized = True
        assert self.keys is not None and self.values is not None
        stop = self.length + key_states.shape[2]
        self.keys[:, :, self.length : stop] = key_states
        self.values[:, :, self.length : stop] = value_states
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def get_seq_length(self) -> int:
        return self.length

    def rows(self, index: Tensor) -> Growing:
        """A copy with these rows only; the original stays whole."""
        assert self.keys is not None and self.values is not None
        copy = Growing(self.capacity)
        copy.keys, copy.values = self.keys[index], self.values[index]
        copy.length, copy.is_initialized = self.length, True
        return copy

    def pair(self, length: int) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        return self.keys[:, :, :length], self.values[:, :, :length]


class Forked(DynamicLayer):
    """One block's keys of rows that leave a trunk: nothing is kept, so one block's copy lives at a time."""

    def __init__(self, trunk: tuple[Tensor, Tensor], rows: Tensor) -> None:
        super().__init__()
        self.trunk, self.trunk_rows = trunk, rows

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        """The trunk's keys and values of each row, then the new ones."""
        keys, values = self.trunk
        return (
            torch.cat([keys[self.trunk_rows], key_states], dim=2),
            torch.cat([values[self.trunk_rows], value_states], dim=2),
        )

    def get_seq_length(self) -> int:
        return self.trunk[0].shape[2]


def growing(blocks: int, capacity: int) -> Cache:
    """An empty cache that can hold `capacity` tokens a row."""
    return Cache(layers=[Growing(capacity) for _ in range(blocks)])


def forked(trunk: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> Cache:
    """A cache whose row i starts from row rows[i] of the trunk."""
    return Cache(layers=[Forked(pair, rows) for pair in trunk])


def take_rows(cache: Cache, index: Tensor) -> Cache:
    """A cache with these rows only."""
    return Cache(layers=[layer.rows(index) for layer in cache.layers])  # type: ignore[attr-defined]
