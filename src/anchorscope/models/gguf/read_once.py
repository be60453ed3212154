"""A GGUF file read once, and unpacked by all cores, by whoever asks gguf or transformers for it.

transformers parses the header anew for the config, the tokenizer and the weights, some 300,000
strings each time, unpacks one tensor after the other and copies each, and makes the table of the
tensors' names anew for every module of the model. That was most of the time of a conversion.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

import gguf
import joblib
import numpy as np
from gguf import GGUFValueType

from anchorscope.models.gguf.reader import Reader
from anchorscope.models.gguf.unpack import Threads, rounded, unpack

# Where transformers parses and unpacks, and where its later releases parse for some architectures.
_LOOP = "transformers.modeling_gguf_pytorch_utils"
_PARSER = "transformers.integrations.gguf.reader"
# torch rounds to float16 with vector code, and on all cores, on Intel's and AMD's alone.
_TORCH_IS_SLOW = platform.machine().lower() in ("aarch64", "arm64")


@contextmanager
def read_once(*, half: bool = False) -> Iterator[None]:
    """Inside, whoever opens a GGUF file gets the same reader, and unpacks with all cores.

    `half` says that transformers is asked for float16.
    """
    with ThreadPoolExecutor(cores := joblib.cpu_count()) as pool, ExitStack() as back:
        threads = Threads(pool, cores)

        def put(owner: Any, name: str, ours: Any) -> None:
            back.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, ours)

        put(gguf, "GGUFReader", _one_reader())
        put(gguf, "dequantize", partial(unpack, plain=gguf.dequantize, threads=threads))
        put(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        _inside_transformers(put, threads, half)
        yield


def _inside_transformers(put: Callable[..., None], threads: Threads, half: bool) -> None:
    """Puts our parts in the place of its own; one that a release has not is left out."""
    loop, parser = _module(_LOOP), _module(_PARSER)
    if hasattr(loop, "_gguf_parse_value"):
        put(loop, "_gguf_parse_value", _parser_of_values(loop._gguf_parse_value))
    if hasattr(loop, "tqdm"):  # its bar asks nobody whether bars are wanted
        put(loop, "tqdm", lambda tensors, **how: tensors)
    if hasattr(parser, "_mapped"):
        mapped = parser._mapped
        put(parser, "_mapped", lambda path: mapped(path).view(np.ndarray))
    if getattr(loop, "np", None) is np and hasattr(loop, "load_gguf_checkpoint"):
        # Earlier releases round later, and not every weight.
        rounds = half and "torch_dtype" in signature(loop.load_gguf_checkpoint).parameters
        put(loop, "np", _Numpy(threads if rounds and _TORCH_IS_SLOW else None))


def _one_reader() -> Any:
    """What opens a file once and returns the same reader ever after."""
    reader = cache(Reader)

    def open_file(path: str | Path, mode: str = "r") -> Reader:
        return reader(str(path))

    return open_file


def _module(name: str) -> Any:
    """A module by its name; nothing where this release of its package has none of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _parser_of_values(plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What parses one value of the header: no string by way of a Python number for each byte."""

    def parsed(part: np.ndarray, kinds: Any) -> Any:
        if kinds[-1] == GGUFValueType.STRING:
            return part.tobytes().decode()
        return part.item() if len(kinds) == 2 and part.size == 1 else plain(part, kinds)

    return parsed


class _Numpy:
    """numpy as it is, but for copies of what nobody else holds.

    transformers copies each tensor, because the numbers of some lie in the file. Those are
    read-only; what may be written was made in this very step. It rounds the copy to float16 next:
    with threads, the copy is rounded already.
    """

    def __init__(self, threads: Threads | None) -> None:
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def copy(self, array: np.ndarray) -> np.ndarray:
        if not array.flags.c_contiguous:
            return np.copy(array)
        if self._threads is not None and array.dtype == np.float32:
            return rounded(array, self._threads)
        return array if array.flags.writeable else np.copy(array)
