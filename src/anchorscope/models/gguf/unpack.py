"""Packed weights as numbers: in slices that stay in a core's cache, on all cores.

gguf unpacks sixteen rows at a time. The steps are then so short that threads only wait for one
another: two cores were no faster than one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

Plain = Callable[[np.ndarray, Any], np.ndarray]

# Long enough that a step without the interpreter's lock outlasts those with it by far, short
# enough that what a step leaves behind is still in the cache for the next one.
_SHORT, _LONG = 1 << 16, 1 << 18


@dataclass(frozen=True)
class Threads:
    """A pool, and how many threads are in it."""

    pool: Executor
    count: int

    def in_slices(self, work: Callable[[slice], None], size: int, *, least: int, most: int) -> None:
        """Does the work on every slice of `size` items: one for each thread, within the bounds."""
        step = min(max(-(-size // self.count), least), most)
        slices = [slice(start, start + step) for start in range(0, size, step)]
        # A single one needs no thread; going through the results raises what was raised inside.
        list((self.pool.map if len(slices) > 1 else map)(work, slices))


def unpack(data: np.ndarray, kind: Any, *, plain: Plain, threads: Threads) -> np.ndarray:
    """The numbers that `plain`, gguf's own function, returns, made by all threads."""
    shape = _shape(data, kind)
    if shape is None:
        return plain(data, kind)
    block, space = gguf.GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1).view(np.uint8).reshape(-1, space)
    out = np.empty((len(blocks), block), np.float32)

    def one(some: slice) -> None:
        # One long row: gguf counts rows, and takes a single one at once.
        out[some] = plain(blocks[some].reshape(1, -1), kind).reshape(-1, block)

    threads.in_slices(one, len(blocks), least=_SHORT // block, most=_LONG // block)
    return out.reshape(shape)


def rounded(values: np.ndarray, threads: Threads) -> np.ndarray:
    """float32 numbers as float16, each the nearest, as torch rounds them; by all threads."""
    out = np.empty(values.shape, np.float16)
    given, made = values.reshape(-1), out.reshape(-1)

    def one(some: slice) -> None:
        with np.errstate(all="ignore"):  # torch says nothing of what is too large either
            made[some] = given[some]

    threads.in_slices(one, given.size, least=_SHORT, most=_LONG)
    return out


def _shape(data: np.ndarray, kind: Any) -> tuple[int, ...] | None:
    """The shape of the numbers; nothing where nothing is packed, or no whole blocks."""
    if kind == gguf.GGMLQuantizationType.F32 or kind not in gguf.GGML_QUANT_SIZES:
        return None
    if not (isinstance(data, np.ndarray) and data.ndim and data.size and data.flags.c_contiguous):
        return None
    block, space = gguf.GGML_QUANT_SIZES[kind]
    wide = data.shape[-1] * data.itemsize
    return None if wide % space else (*data.shape[:-1], wide // space * block)
