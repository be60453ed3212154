"""A GGUF file read once, and unpacked by all cores.

transformers parses the header anew for the config, the tokenizer and the weights, some 300,000
strings each time, older versions unpack one tensor after the other, and the table of the tensors'
names is made anew for every module of the model. That was most of the time of a conversion.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import joblib
import numpy as np

_ROWS = 256  # fewer are not worth another thread
if not hasattr(gguf, "__version__"):  # on Python 3.10 the first releases of transformers 5 ask it
    setattr(gguf, "__version__", version("gguf"))  # noqa: B010 - it declares none


class Reader(gguf.GGUFReader):
    """gguf's own reader over a plain array: slices of a memory map cost three times as much."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = mapped.view(np.ndarray)


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, whoever opens a GGUF file gets the same reader, and unpacks with all cores."""
    before = gguf.GGUFReader, gguf.dequantize, gguf.get_tensor_name_map
    reader = cache(Reader)

    def open_file(path: str | Path, mode: str = "r") -> Reader:
        return reader(str(path))

    with ThreadPoolExecutor(joblib.cpu_count()) as pool:

        def unpack(data: np.ndarray, kind: Any) -> np.ndarray:
            if len(data) < 2 * _ROWS:
                return before[1](data, kind)
            parts = np.array_split(data, min(4 * joblib.cpu_count(), len(data) // _ROWS))
            return np.concatenate(list(pool.map(lambda part: before[1](part, kind), parts)))

        gguf.GGUFReader, gguf.dequantize = open_file, unpack
        gguf.get_tensor_name_map = cache(before[2])
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.dequantize, gguf.get_tensor_name_map = before
