"""Packed weights as numbers: in slices that stay in a core's cache, on all cores.

gguf unpacks sixteen rows at a time. The steps are then so short that threads only wait for one
another: two cores were no faster than one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from math import prod
from typing import Any

import gguf
import numpy as np

Plain = Callable[[np.ndarray, Any], np.ndarray]

# Long enough that a step without the interpreter's lock outlasts those with it by far, short
# enough that what a step leaves behind is still in the cache for the next one.
_SLICE = 1 << 19


def unpack(data: np.ndarray, kind: Any, *, plain: Plain, pool: Executor) -> np.ndarray:
    """The numbers that `plain`, gguf's own function, returns, made by all threads of `pool`."""
    shape = _shape(data, kind)
    if shape is None or prod(shape) < 2 * _SLICE:
        return plain(data, kind)
    block, space = gguf.GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1).view(np.uint8).reshape(-1, space)
    out = np.empty((len(blocks), block), np.float32)
    step = _SLICE // block

    def one(start: int) -> None:
        # One long row: gguf counts rows, and takes a single one at once.
        row = plain(blocks[start : start + step].reshape(1, -1), kind)
        out[start : start + step] = row.reshape(-1, block)

    for _ in pool.map(one, range(0, len(blocks), step)):
        pass
    return out.reshape(shape)


def rounded(values: np.ndarray, pool: Executor) -> np.ndarray:
    """float32 numbers as float16, each the nearest, as torch rounds them; by all threads."""
    out = np.empty(values.shape, np.float16)
    given, made = values.reshape(-1), out.reshape(-1)

    def one(start: int) -> None:
        with np.errstate(all="ignore"):  # torch says nothing of what is too large either
            made[start : start + _SLICE] = given[start : start + _SLICE]

    for _ in pool.map(one, range(0, given.size, _SLICE)):
        pass
    return out


def _shape(data: np.ndarray, kind: Any) -> tuple[int, ...] | None:
    """The shape of the numbers; nothing where they are no whole blocks, or need no unpacking."""
    if kind == gguf.GGMLQuantizationType.F32 or kind not in gguf.GGML_QUANT_SIZES:
        return None
    if not (isinstance(data, np.ndarray) and data.ndim and data.flags.c_contiguous):
        return None
    block, space = gguf.GGML_QUANT_SIZES[kind]
    wide = data.shape[-1] * data.itemsize
    return None if wide % space else (*data.shape[:-1], wide // space * block)
