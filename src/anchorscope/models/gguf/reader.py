"""A GGUF file's header in a fraction of a second: gguf's own reader, but for its long arrays.

A vocabulary is some 300,000 strings and as many numbers. gguf makes a view with its own byte order
of each; that took five seconds, most of them before the first weight was read.
"""

from __future__ import annotations

import struct
from importlib.metadata import version
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType

if not hasattr(gguf, "__version__"):  # on Python 3.10 the first releases of transformers 5 ask it
    setattr(gguf, "__version__", version("gguf"))  # noqa: B010 - it declares none

_START = 12  # bytes in front of an array's items: their kind and their number


class Reader(gguf.GGUFReader):
    """gguf's own reader over a plain array: slices of a memory map cost three times as much."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = mapped.view(np.ndarray)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """The size, parts, indices and kinds of one field, as gguf's own method returns them."""
        if raw_type == GGUFValueType.ARRAY and self.byte_order == "I":
            kind = int(self._get(orig_offs, np.uint32)[0])
            if kind == GGUFValueType.STRING:
                return self._strings(orig_offs)
            if (number := self.gguf_scalar_to_np.get(GGUFValueType(kind))) is not None:
                return self._numbers(orig_offs, kind, number)
        return super()._get_field_parts(orig_offs, raw_type)

    def _strings(self, start: int) -> Any:
        """An array of strings: of each its length, as a view of eight bytes, and its bytes."""
        data, at, parts = self.data, start + _START, self._front(start)
        length_at = struct.Struct("=Q").unpack_from
        count = int(parts[1][0])
        for _ in range(count):
            (length,) = length_at(data, at)
            at += 8
            parts += (data[at - 8 : at].view(np.uint64), data[at : at + length])
            at += length
        kinds = [GGUFValueType.ARRAY, *[GGUFValueType.STRING] * bool(count)]
        return at - start, parts, list(range(3, 2 * count + 3, 2)), kinds

    def _numbers(self, start: int, kind: int, number: Any) -> Any:
        """An array of numbers: of each a view of one item."""
        parts = self._front(start)
        count = int(parts[1][0])
        items = self._get(start + _START, number, count)
        if len(items) < count:
            raise ValueError(f"its header is cut off: {len(items)} of {count} numbers are there")
        parts.extend(items.reshape(count, 1))
        kinds = [GGUFValueType.ARRAY, *[GGUFValueType(kind)] * bool(count)]
        return _START + items.nbytes, parts, list(range(2, count + 2)), kinds

    def _front(self, start: int) -> list[np.ndarray]:
        """What stands before an array's items: their kind and their number."""
        return [self._get(start, np.uint32), self._get(start + 4, np.uint64)]
