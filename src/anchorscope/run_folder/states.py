"""States on disk: [question, layer, width] by pass and shard; all at once, or a layer at a time."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from anchorscope.errors import UserError
from anchorscope.run_folder.listing import require_whole
from anchorscope.run_folder.store import Store

# Layers that the next detector may read too. Every process that fits detectors keeps its own.
_KEPT_BYTES = 2**29
_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}  # what safetensors calls them
_NAMES = {of: name for name, of in _DTYPES.items()}
_MOST_NUMBERS = 2**24  # layers × width of one question
_Rows = slice | list[int]
_ONE_AT_A_TIME = threading.Lock()  # for a caller who asks joblib for threads instead


def shard_name(intervention: str, number: int) -> str:
    """The name of a shard's file in the run folder."""
    return f"states/{intervention}/{number:05d}.safetensors"


def save_states(
    store: Store, name: str, ids: Sequence[str], states: np.ndarray | Sequence[np.ndarray]
) -> None:
    """Stores states [question, layer, width], in one array or some questions in each of several.

    In half precision where they fit it, as they come. A few calls over whole arrays: the thread
    that writes would otherwise wait for Python's lock, which the thread that feeds the model holds,
    again and again.
    """
    blocks = [states] if isinstance(states, np.ndarray) else states
    if not all(map(_finite, blocks)):
        rows = zip(ids, (state for block in blocks for state in block), strict=True)
        broken = [id for id, state in rows if not _finite(state)]
        raise UserError(
            f"{len(broken)} states for {name} are NaN or infinite (first: {broken[0]}). "
            "The model overflows in this dtype: take --dtype float32 and another --out."
        )
    dtype = _NAMES[np.result_type(*blocks).str]
    save_blocks(store, name, ids, (len(ids), *blocks[0].shape[1:]), blocks, dtype=dtype)


def _finite(states: np.ndarray) -> bool:
    """Whether every number is finite; of halves by their bits, in a tenth of numpy's time."""
    if states.dtype != np.float16:
        return bool(np.isfinite(states).all())
    bits = np.ascontiguousarray(states).view(np.uint16)
    # From here on an infinity or a NaN: with a sign as the number's bits stand, without one as
    # they stand when the first bit is taken for the sign.
    return not bits.size or bool(bits.max() < 0xFC00 and bits.view(np.int16).max() < 0x7C00)


def save_blocks(
    store: Store,
    name: str,
    ids: Sequence[str],
    shape: Sequence[int],
    blocks: Iterable[np.ndarray],
    *,
    dtype: str = "F32",
) -> None:
    """Stores states [question, layer, width] that come some questions at a time.

    Never holds them all, nor a copy: safetensors' own writer makes one string of bytes of them,
    which took longer than everything else about a file.
    """
    kind = np.dtype(_DTYPES[dtype])
    size = kind.itemsize * math.prod(shape)
    about = {
        "__metadata__": {"ids": json.dumps(list(ids))},
        "states": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]},
    }
    head = json.dumps(about).encode()
    head += b" " * (-len(head) % 8)

    def write(file: Any) -> None:
        file.write(len(head).to_bytes(8, "little") + head)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=kind).data)

    store.write(name, write)


def load_states(store: Store, intervention: str, ids: Sequence[str], shards: int) -> np.ndarray:
    """States [question, layer, width] in float32 in the order of `ids`; NaN where there is none.

    Where one file holds just these, they are memory-mapped, and only what is looked at is read.
    """
    if shards == 1:
        whole = _mapped(store.file(shard_name(intervention, 0)), ids)
        if whole is not None:
            return whole
    place = {id: row for row, id in enumerate(ids)}
    out: np.ndarray | None = None
    for number in range(shards):
        with _shard(store.file(shard_name(intervention, number))) as (file, ids_here):
            if out is None:
                shape = file.get_slice("states").get_shape()
                out = np.full((len(ids), *shape[1:]), np.nan, dtype=np.float32)
            here = [(place[id], row) for row, id in enumerate(ids_here) if id in place]
            if here:  # a shard of another dataset is not read
                to, of = map(list, zip(*here, strict=True))
                out[to] = file.get_tensor("states")[of]
    assert out is not None, "a run has one shard at least"
    return out


def _mapped(path: Path, ids: Sequence[str]) -> np.ndarray | None:
    """The states of a file as they lie there; None where they are others, or not float32."""
    with _shard(path) as (file, ids_here):
        alike = file.get_slice("states").get_dtype() == "F32" and ids_here == list(ids)
        return _lying(path, file)() if alike else None


def _lying(path: Path, file: Any) -> Callable[[], np.ndarray]:
    """What maps the states [question, layer, width] of a file, open now, into memory.

    The library has checked lengths and offsets; its own slices are copied number by number.
    """
    states = file.get_slice("states")
    kind, shape = np.dtype(_DTYPES[states.get_dtype()]), tuple(states.get_shape())
    start = path.stat().st_size - kind.itemsize * math.prod(shape)
    return partial(np.memmap, path, dtype=kind, mode="r", offset=start, shape=shape)


@contextmanager
def _shard(path: Path) -> Iterator[tuple[Any, list[str]]]:
    """A shard's file and the ids of its rows; a sentence where it is not what we write."""
    file, ids = _opened(path)
    try:
        with file:
            yield file, ids
    except (SafetensorError, OSError) as error:
        raise _no_states(path, error) from error


def _opened(path: Path) -> tuple[Any, list[str]]:
    """The file and its ids, found to fit each other: a header may say anything."""
    try:
        file = safe_open(path, framework="numpy")
        ids, states = json.loads((file.metadata() or {})["ids"]), file.get_slice("states")
        names, shape = list(file.keys()), states.get_shape()
        whole = isinstance(ids, list) and all(isinstance(id, str) for id in ids)
        if not whole or names != ["states"] or len(shape) != 3 or shape[0] != len(ids):
            raise ValueError("it does not hold one state for each of its ids")
        if not all(shape[1:]) or states.get_dtype() not in _DTYPES:
            raise ValueError("its states have no numbers")
        if math.prod(shape[1:]) > _MOST_NUMBERS:  # a shard without a question may claim any width
            raise ValueError("its states have more numbers than those of any model")
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _no_states(path, error) from error
    return file, ids


def _no_states(path: Path, error: Exception) -> UserError:
    return UserError(
        f"'{path}' cannot be read, or holds no states ({error}). The command that made the run "
        "makes it again."
    )


_WHOLE: set[tuple] = set()  # files that were found whole, with their facts


def require_whole_states(path: Path) -> None:
    """Raise a UserError where a file of a run's states is not as it was written.

    Whoever trains on a run long after it was made does not know what became of it. Done once a
    process, before others are started, and several files at a time: a run may hold many gigabytes.
    """
    files = sorted((path / "states").glob("*/*.safetensors"))
    facts = {(file.absolute(), *_facts(file)): file for file in files}
    fresh = {key: file for key, file in facts.items() if key not in _WHOLE}
    with ThreadPoolExecutor() as pool:
        names = [file.relative_to(path).as_posix() for file in fresh.values()]
        list(pool.map(lambda name: require_whole(path, name), names))
    _WHOLE.update(fresh)


class StateBank:
    """The states of a run folder, a layer read from disk when it is first asked for.

    Sent to another process it goes without what it has read: files are shared, memory is not.
    """

    def __init__(self, path: Path, ids: list[str]) -> None:
        self.folder, self.place = path / "states", {id: row for row, id in enumerate(ids)}
        self._other_name: dict[str, str] = {}
        self._read: dict[tuple[str, int], np.ndarray] = {}
        self._mapped: dict[str, list[tuple[_Rows, np.ndarray, _Rows]]] = {}  # by pass

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_read": {}, "_mapped": {}}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(p.name for p in self.folder.iterdir() if any(p.glob("*.safetensors")))

    @property
    def layers(self) -> int:
        with _shard(self._shards("clean")[0]) as (file, _):
            return int(file.get_slice("states").get_shape()[1])

    def renamed(self, names: Mapping[str, str]) -> StateBank:
        """The same states, some passes read from those of another name."""
        other = StateBank(self.folder.parent, list(self.place))
        other._other_name = dict(names)
        return other

    def layer(self, name: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer as stored; NaN where there is none."""
        name = self._other_name.get(name, name)
        states = self._read.get((name, layer))
        if states is None:
            states = self._load(name, layer)
            with _ONE_AT_A_TIME:
                self._make_room(states.nbytes)
                self._read[name, layer] = states
        return states

    def _make_room(self, size: int) -> None:
        """Forgets what was read first, until `size` more bytes may be kept."""
        kept = sum(states.nbytes for states in self._read.values())
        while self._read and kept + size > _KEPT_BYTES:
            kept -= self._read.pop(next(iter(self._read))).nbytes

    def _shards(self, name: str) -> list[Path]:
        files = sorted((self.folder / name).glob("*.safetensors"))
        if not files:
            raise UserError(f"'{self.folder}' holds no states of '{name}'. Collect them first.")
        return files

    def _load(self, name: str, layer: int) -> np.ndarray:
        if name not in self._mapped:
            self._mapped[name] = list(self._found(name))
        found, count = self._mapped[name], len(self.place)
        if not found:  # not one of these questions has a state
            with _shard(self._shards(name)[0]) as (file, _):
                return np.full(
                    (count, file.get_slice("states").get_shape()[2]), np.nan, dtype=np.float16
                )
        # A shard with a value beyond the range of halves is in single precision.
        kind = np.result_type(*(states.dtype for _, states, _ in found))
        out, lacking = np.empty((count, found[0][1].shape[2]), kind), np.ones(count, bool)
        for to, states, of in found:
            out[to], lacking[to] = states[of, layer - 1], False
        out[lacking] = np.nan
        return out

    def _found(self, name: str) -> Iterator[tuple[_Rows, np.ndarray, _Rows]]:
        """Where a shard's states go, the states, and which of them; a shard without is left out."""
        files = tuple((path, *_facts(path)) for path in self._shards(name))
        for to, mapped, of in _places(files, tuple(self.place)):
            yield to, mapped(), of


@lru_cache(maxsize=64)
def _places(files: tuple[tuple, ...], ids: tuple[str, ...]) -> list[tuple[_Rows, Any, _Rows]]:
    """Where each file's states go among these ids, what maps them, and which of them.

    A process gets bank after bank of a dataset: files that are as they were are not opened again.
    """
    place, found = {id: row for row, id in enumerate(ids)}, []
    for path, *_ in files:
        with _shard(path) as (file, ids_here):
            here = [(place[id], row) for row, id in enumerate(ids_here) if id in place]
            if here:
                to, of = (_rows(list(rows)) for rows in zip(*here, strict=True))
                found.append((to, _lying(path, file), of))
    return found


def _facts(path: Path) -> tuple[int, int, int]:
    """What tells a file from one that was put in its place."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ino


def _rows(numbers: list[int]) -> _Rows:
    """The same rows, as a slice where they follow one another: it is copied in one go."""
    first, count = numbers[0], len(numbers)
    return slice(first, first + count) if numbers == list(range(first, first + count)) else numbers


class StoredStates:
    """The states [question, layer, width] of one pass on disk: `[:, k]` reads that layer alone."""

    def __init__(self, bank: StateBank, name: str) -> None:
        self.bank, self.name = bank, name

    @property
    def layers(self) -> int:
        return self.bank.layers

    def __getitem__(self, at: tuple[slice, int]) -> np.ndarray:
        rows, layer = at
        return self.bank.layer(self.name, layer + 1)[rows]
