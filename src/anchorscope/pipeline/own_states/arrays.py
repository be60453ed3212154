"""Arrays of a .npz or .safetensors file, or in memory, read some rows at a time."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from anchorscope.errors import UserError, user_path

# What zipfile and numpy say of an archive that is damaged, locked, or packed in another way.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, TypeError, LookupError,
    NotImplementedError, OverflowError, RuntimeError, MemoryError,
)  # fmt: skip
ENDINGS = (".npz", ".safetensors")
_BLOCK = 2**24  # numbers read at a time: 64 MB in float32
_SAFE = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """An array that is read when it is asked for."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int], Iterator[np.ndarray]]  # that many rows at a time

    def blocks(self, *, passes: int = 1) -> Iterator[np.ndarray]:
        """The array in parts along its first axis, smaller where several passes go in step."""
        row = max(1, math.prod(self.shape[1:]))
        return self.read(max(1, _BLOCK // (row * passes)))

    def values(self) -> list[Any]:
        """The entries of one axis as Python values, bytes as text."""
        values = (value for block in self.blocks() for value in block.tolist())
        return [value.decode() if isinstance(value, bytes) else value for value in values]


def arrays_of(source: str | Path | Mapping[str, Any]) -> dict[str, StoredArray]:
    """The arrays of a file or a mapping, by name."""
    if isinstance(source, Mapping):
        return {name: in_memory(np.asarray(of)) for name, of in source.items() if of is not None}
    path = user_path(source)
    if path.suffix not in ENDINGS:
        raise UserError(f"States cannot be read from {path}. Accepted: {' or '.join(ENDINGS)}.")
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give the states as {' or '.join(ENDINGS)}.")
    return _of_npz(path) if path.suffix == ".npz" else _of_safetensors(path)


def in_memory(array: np.ndarray) -> StoredArray:
    array = np.atleast_1d(array)

    def read(rows: int) -> Iterator[np.ndarray]:
        yield from (array[start : start + rows] for start in range(0, len(array), rows))

    return StoredArray(shape=array.shape, dtype=str(array.dtype), read=read)


def _of_npz(path: Path) -> dict[str, StoredArray]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name.removesuffix(".npy"): _of_member(path, name) for name in members}
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def _of_member(path: Path, name: str) -> StoredArray:
    """An array of a .npz file, streamed: numpy itself reads a member whole."""
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        shape, in_columns, dtype = _header(file)
    if dtype.hasobject:
        raise UserError(
            f"{name.removesuffix('.npy')} in {path} holds Python objects, which are not read. "
            "Save it as numbers or as text (dtype str)."
        )
    if (in_columns and len(shape) > 1) or not shape:
        with np.load(path, allow_pickle=False) as arrays:
            return in_memory(arrays[name.removesuffix(".npy")])

    def read(rows: int) -> Iterator[np.ndarray]:
        each = dtype.itemsize * math.prod(shape[1:])
        try:
            with zipfile.ZipFile(path) as archive, archive.open(name) as file:
                _header(file)
                for start in range(0, shape[0], rows):
                    count = min(rows, shape[0] - start)
                    part = np.frombuffer(file.read(count * each), dtype=dtype)
                    yield part.reshape(count, *shape[1:])
        except _DAMAGE as error:
            raise _damaged(path, error) from error

    return StoredArray(shape=shape, dtype=dtype.name, read=read)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    form = np.lib.format
    first = form.read_magic(file) == (1, 0)
    return form.read_array_header_1_0(file) if first else form.read_array_header_2_0(file)


def _of_safetensors(path: Path) -> dict[str, StoredArray]:
    """The tensors of a file, and the lists of text that its metadata holds as JSON."""
    arrays: dict[str, StoredArray] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name, text in (file.metadata() or {}).items():
                if text.lstrip().startswith("["):
                    arrays[name] = in_memory(np.asarray(json.loads(text), dtype=str))
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                part = file.get_slice(name)
                arrays[name] = _of_tensor(path, name, tuple(part.get_shape()), part.get_dtype())
    except (SafetensorError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    return arrays


def _of_tensor(path: Path, name: str, shape: tuple[int, ...], kind: str) -> StoredArray:
    def read(rows: int) -> Iterator[np.ndarray]:
        # numpy knows no bfloat16; torch turns it into float32 without loss.
        with safe_open(path, framework="pt" if kind == "BF16" else "numpy") as file:
            part = file.get_slice(name)
            for start in range(0, shape[0], rows):
                block = part[start : min(start + rows, shape[0])]
                yield block.float().numpy() if kind == "BF16" else block

    return StoredArray(shape=shape or (0,), dtype=_SAFE.get(kind, kind), read=read)


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged or no {path.suffix} file ({error}). Write it again.")
