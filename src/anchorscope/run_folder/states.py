"""Store hidden states [question, layer, width] by pass and shard, and read them by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from anchorscope.errors import UserError
from anchorscope.run_folder.manifest import require_whole
from anchorscope.run_folder.store import Store

_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}  # safetensors' names
_NAMES = {kind: name for name, kind in _DTYPES.items()}
_MOST_NUMBERS = 2**24  # layers × width of one question


def shard_name(intervention: str, number: int) -> str:
    """The file name of a shard's states in the run folder."""
    return f"states/{intervention}/{number:05d}.safetensors"


def save_states(
    store: Store, name: str, ids: Sequence[str], states: np.ndarray | Sequence[np.ndarray]
) -> None:
    """Store states [question, layer, width], given as one array or as blocks of questions."""
    blocks = [states] if isinstance(states, np.ndarray) else states
    finite = np.concatenate([np.isfinite(block).all(axis=(1, 2)) for block in blocks])
    broken = [id for id, good in zip(ids, finite, strict=True) if not good]
    if broken:
        raise UserError(
            f"{len(broken)} states for {name} are NaN or infinite (first: {broken[0]}). "
            "The model overflows in this dtype: take --dtype float32 and another --out."
        )
    dtype = _NAMES[np.result_type(*blocks).str]
    save_blocks(store, name, ids, (len(ids), *blocks[0].shape[1:]), blocks, dtype=dtype)


def save_blocks(
    store: Store,
    name: str,
    ids: Sequence[str],
    shape: Sequence[int],
    blocks: Iterable[np.ndarray],
    *,
    dtype: str = "F32",
) -> None:
    """Write states [question, layer, width] to a safetensors file, one block at a time.

    safetensors' own writer would hold all of them in memory as one string of bytes.
    """
    kind = np.dtype(_DTYPES[dtype])
    size = kind.itemsize * math.prod(shape)
    header = {
        "__metadata__": {"ids": json.dumps(list(ids))},
        "states": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]},
    }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)

    def write(file: Any) -> None:
        file.write(len(head).to_bytes(8, "little") + head)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=kind).data)

    store.write(name, write)


class Shard(NamedTuple):
    """A file of states, its header read and checked."""

    path: Path
    ids: list[str]
    dtype: np.dtype
    shape: tuple[int, int, int]  # question, layer, width

    def states(self) -> np.ndarray:
        """The states [question, layer, width], mapped into memory."""
        start = self.path.stat().st_size - self.dtype.itemsize * math.prod(self.shape)
        return np.memmap(self.path, self.dtype, mode="r", offset=start, shape=self.shape)


def open_shard(path: Path) -> Shard:
    """Open a file of states and check its header; safetensors checks lengths and offsets."""
    try:
        with safe_open(path, framework="numpy") as file:
            ids, states = json.loads((file.metadata() or {})["ids"]), file.get_slice("states")
            names, shape, dtype = list(file.keys()), tuple(states.get_shape()), states.get_dtype()
        if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
            raise ValueError("its ids are not text")
        if names != ["states"] or len(shape) != 3 or shape[0] != len(ids):
            raise ValueError("it does not hold one state for each of its ids")
        # A shard without a question may claim any width.
        if dtype not in _DTYPES or not 0 < math.prod(shape[1:]) <= _MOST_NUMBERS:
            raise ValueError("its states are not those of a model")
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"'{path}' cannot be read, or holds no states ({error}). The command that made the run "
            "makes it again."
        ) from error
    return Shard(path, ids, np.dtype(_DTYPES[dtype]), shape)


def shards_of(path: Path, intervention: str) -> list[Shard]:
    """Open the files of a pass's states in a run folder, in their order."""
    files = sorted((path / "states" / intervention).glob("*.safetensors"))
    if not files:
        raise _missing_states(path, f"states of '{intervention}'")
    shards = [open_shard(file) for file in files]
    for shard in shards:
        if shard.shape[1:] != shards[0].shape[1:]:
            raise UserError(
                f"'{shard.path}' has other layers or another width than '{shards[0].path.name}'. "
                "Get the folder again, or run its command into a new one."
            )
    return shards


def passes_in(path: Path) -> list[str]:
    """The passes whose states a run folder holds; a UserError where it holds none."""
    names = sorted({file.parent.name for file in (path / "states").glob("*/*.safetensors")})
    if not names:
        raise _missing_states(path, "states")
    return names


def _missing_states(path: Path, what: str) -> UserError:
    return UserError(
        f"'{path}' holds no {what}: none were collected, or they were removed. The command that "
        "made the run reads them again with --keep-states all."
    )


def require_whole_states(path: Path) -> None:
    """Raise a UserError where a file of a run's states differs from what was written."""
    for file in sorted((path / "states").glob("*/*.safetensors")):
        require_whole(path, file.relative_to(path).as_posix())


class StateBank:
    """The states of some questions of a run folder, in the order of `ids`; NaN where there is none.

    A layer is read from disk whenever it is needed: the system caches recent reads, and copying a
    layer takes a sixtieth of the time of fitting a probe on it. A shard is mapped while it is read:
    a process may have no more than 65,530 maps on Linux. Pickling drops what was found.
    `other_names` maps a pass to the pass whose states are read instead.
    """

    def __init__(
        self, path: Path, ids: Sequence[str], other_names: Mapping[str, str] | None = None
    ) -> None:
        self.path, self.ids, self._other_names = path, list(ids), other_names or {}
        # By pass: the shape of a state, and the place of each question in the shards.
        self._found: dict[str, tuple[tuple[int, int], list[_Match]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_found": {}}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(passes_in(self.path))

    @property
    def layers(self) -> int:
        return shards_of(self.path, "clean")[0].shape[1]

    def layer(self, name: str, layer: int) -> np.ndarray:
        """The states [question, width] of one layer in the precision of the files."""
        (_, width), matches = self._find(name)
        # A shard with a value beyond the range of float16 is in float32.
        kinds = [match.shard.dtype for match in matches] or [np.dtype(np.float16)]
        out = np.full((len(self.ids), width), np.nan, np.result_type(*kinds))
        for rows, shard, stored in matches:
            out[rows] = shard.states()[stored, layer - 1]
        return out

    def all_layers(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """The states [question, layer, width] in float32, or written into `out`."""
        shape, matches = self._find(name)
        if out is None:
            out = np.empty((len(self.ids), *shape), np.float32)
        out[:] = np.nan
        for rows, shard, stored in matches:
            out[rows] = shard.states()[stored]
        return out

    def _find(self, name: str) -> tuple[tuple[int, int], list[_Match]]:
        """The shape of a pass's states, and the shards that hold some of the questions."""
        if name not in self._found:
            place = {id: row for row, id in enumerate(self.ids)}
            shards, matches = shards_of(self.path, self._other_names.get(name, name)), []
            for shard in shards:
                stored = [row for row, id in enumerate(shard.ids) if id in place]
                if stored:
                    rows = [place[shard.ids[row]] for row in stored]
                    matches.append(_Match(rows, shard, stored))
            self._found[name] = shards[0].shape[1:], matches
        return self._found[name]


class _Match(NamedTuple):
    """The rows of a `StateBank` whose states are in one shard."""

    rows: list[int]  # of the bank
    shard: Shard
    stored: list[int]  # rows of the shard


@dataclass(frozen=True)
class StoredStates:
    """The states [question, layer, width] of one pass on disk: `[:, k]` reads that layer alone."""

    bank: StateBank
    name: str

    @property
    def layers(self) -> int:
        return self.bank.layers

    def __getitem__(self, at: tuple[slice, int]) -> np.ndarray:
        rows, layer = at
        return self.bank.layer(self.name, layer + 1)[rows]
