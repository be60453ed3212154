"""Open the arrays of a .npz or .safetensors file, and check that they are states of a knockout.

Arrays are memory-mapped where the file allows it (all but compressed .npz files), and only some
rows of them are held at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from safetensors import SafetensorError, safe_open

from anchorscope.errors import UserError, user_path
from anchorscope.probes.folds import MIN_OVERALL

if TYPE_CHECKING:
    import torch

NEEDED = ("clean", "knockout")
# A sample that has no state under one of these is NaN throughout. `question` is the name of a text
# as well: with three axes it is the pass.
OPTIONAL = ("neutral", "content", "question_pass", "answer_only", "retest", "retest_knockout")
TEXTS = ("id", "question", "answer", "entity", "relation", "kind")
NUMBERS = ("popularity", "length", "exact_tokens")
FACTS = (*TEXTS, *NUMBERS)
ENDINGS = (".npz", ".safetensors")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_BLOCK = 2**24  # numbers read at a time: 64 MB in float32
# Raised by zipfile and numpy for an archive that is damaged, locked, or packed in another way.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, OSError, TypeError,
    LookupError, NotImplementedError, OverflowError, RuntimeError, MemoryError,
)  # fmt: skip
Array = Union[np.ndarray, "torch.Tensor"]  # a tensor where numpy has no such dtype: bfloat16
Arrays = Mapping[str, Array]


# --- Open ---


def open_arrays(source: str | Path | Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a file or a mapping, by name."""
    if isinstance(source, Mapping):
        given = {name: value for name, value in source.items() if value is not None}
        return {name: np.atleast_1d(np.asarray(value)) for name, value in given.items()}
    path = user_path(source)
    if path.suffix not in ENDINGS:
        raise UserError(f"States cannot be read from {path}. Accepted: {' or '.join(ENDINGS)}.")
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give the states as {' or '.join(ENDINGS)}.")
    try:
        return _open_npz(path) if path.suffix == ".npz" else _open_safetensors(path)
    except (*_DAMAGE, SafetensorError) as error:
        raise UserError(
            f"{path} is damaged or no {path.suffix} file ({error}). Write it again."
        ) from error


def _open_npz(path: Path) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as member:
                shape, in_columns, dtype = _npy_header(member)
                start = member.tell()
                if dtype.hasobject:
                    raise UserError(
                        f"{name} in {path} holds Python objects, which are not read. "
                        "Save it as numbers or as text (dtype str)."
                    )
                size = dtype.itemsize * math.prod(shape)
                if min((0, *shape)) < 0 or start + size != info.file_size:
                    raise ValueError(f"{name} has not the size that its header says")
                order = "F" if in_columns else "C"
                if info.compress_type == zipfile.ZIP_STORED and size:
                    raw.seek(info.header_offset + 26)  # lengths of the name and the extra field
                    start += info.header_offset + 30 + sum(struct.unpack("<HH", raw.read(4)))
                    array: Any = np.memmap(path, dtype, "r", start, shape, order)
                else:
                    array = np.frombuffer(member.read(), dtype).reshape(shape, order=order)
            arrays[name] = np.atleast_1d(array)
    return arrays


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    form = np.lib.format
    first = form.read_magic(file) == (1, 0)
    return form.read_array_header_1_0(file) if first else form.read_array_header_2_0(file)


def _open_safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, and the lists of text that its metadata holds as JSON."""
    arrays: dict[str, Array] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name, text in (file.metadata() or {}).items():
                if text.lstrip().startswith("["):
                    arrays[name] = np.asarray(json.loads(text), dtype=str)
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor = file.get_tensor(name)  # memory-mapped
                plain = _dtype(tensor) in (*_FLOATS, *_INTEGERS) and _dtype(tensor) != "bfloat16"
                arrays[name] = np.atleast_1d(tensor.numpy()) if plain else tensor
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return arrays


def _dtype(array: Array) -> str:
    return getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))


def block_size(array: Array, *, passes: int = 1) -> int:
    """How many rows of an array are read at a time, where so many passes go in step."""
    return max(1, _BLOCK // (max(1, math.prod(array.shape[1:])) * passes))


def read_rows(array: Array, start: int, stop: int) -> np.ndarray:
    """Rows of an array; bfloat16 as float32, without loss."""
    rows = array[start:stop]
    return rows if isinstance(rows, np.ndarray) else rows.float().numpy()


def values(array: Array) -> list[Any]:
    """The entries of one axis as Python values, bytes as text."""
    return [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]


# --- Check ---


def check_arrays(arrays: Arrays) -> str:
    """The hash of all arrays that are used; a UserError that says what is wrong with them."""
    missing = [name for name in (*NEEDED, "z") if name not in arrays]
    if missing:
        raise UserError(
            f"There is no array {' and no array '.join(missing)}. Arrays there: "
            f"{', '.join(arrays) or 'none'}. Needed: {', '.join((*NEEDED, 'z'))}; optional: "
            f"{', '.join((*OPTIONAL, *FACTS))}."
        )
    states = {name: arrays[name] for name in (*NEEDED, *OPTIONAL) if name in arrays}
    for name, array in states.items():
        _check_shape(name, array, states["clean"])
    n = states["clean"].shape[0]
    for name in ("z", *FACTS):
        if name in arrays and tuple(arrays[name].shape) != (n,):
            raise UserError(
                f"{name} is {list(arrays[name].shape)}; expected one entry for each of the {n} "
                "samples of clean."
            )
    for name in NUMBERS:
        if name in arrays and not _dtype(arrays[name]).startswith(("float", "int", "uint", "bool")):
            raise UserError(f"{name} holds {_dtype(arrays[name])}; expected numbers.")
    counts = Counter(values(arrays["z"]))
    if other := [value for value in counts if value not in (0, 1)]:
        shown = ", ".join(repr(value) for value in other[:3])
        raise UserError(f"z holds {shown}; accepted: 1 (wrong) and 0 (right).")
    if min(counts[1], counts[0]) < MIN_OVERALL:
        raise UserError(
            f"z has {counts[1]} wrong and {counts[0]} right answers; probes need at least "
            f"{MIN_OVERALL} of each. Give more samples."
        )
    if "id" in arrays:
        (id, times), *_ = Counter(map(str, values(arrays["id"]))).most_common(1)
        if times > 1:
            raise UserError(f"The id '{id}' is there {times} times; every sample needs its own.")
    digest = _check_states(states)
    for name in ("z", *FACTS):
        digest.update(repr((name, values(arrays[name]) if name in arrays else None)).encode())
    return digest.hexdigest()


def _check_shape(name: str, array: Array, clean: Array) -> None:
    shape = list(array.shape)
    if _dtype(array) not in _FLOATS:
        raise UserError(f"{name} holds {_dtype(array)}; states are {', '.join(_FLOATS)}.")
    if len(shape) != 3:
        raise UserError(
            f"{name} is {shape}; states are [sample, layer, width]. One layer alone is "
            f"{name}[:, None]."
        )
    if 0 in shape:
        raise UserError(f"{name} is {shape}: it holds nothing.")
    if shape != list(clean.shape):
        raise UserError(
            f"{name} is {shape} and clean {list(clean.shape)}; both must hold the same "
            "samples, layers and width."
        )


def _check_states(states: Arrays) -> hashlib.blake2b:
    """Read everything once: every state finite, and moved by each intervention."""
    digest, clean = hashlib.blake2b(digest_size=16), states["clean"]
    broken: dict[str, list[np.ndarray]] = {name: [] for name in states}
    differs = dict.fromkeys([*states, "knockout from neutral"], False)
    first = read_rows(clean, 0, 1)
    size = block_size(clean, passes=len(states))
    for start in range(0, len(clean), size):
        block = {n: read_rows(array, start, start + size) for n, array in states.items()}
        for name, part in block.items():
            digest.update(np.ascontiguousarray(part).data)
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as inf
                finite = np.isfinite(part.astype(np.float32, copy=False))
            bad = ~finite.all(axis=2)
            if name in OPTIONAL:  # NaN throughout: the sample has no such state
                absent: Any = np.isnan(part).all(axis=(1, 2))
                bad &= ~absent[:, None]
            broken[name].append(np.argwhere(bad) + np.array([start, 0]))
            other = first if name == "clean" else block["clean"]
            differs[name] |= bool(((part != other) & finite).any())
        neutral = block.get("neutral")
        moved = neutral is None or bool((block["knockout"] != neutral).any())
        differs["knockout from neutral"] |= moved
    for name, array in states.items():
        _check_finite(name, _dtype(array), np.concatenate(broken[name]), len(clean))
    if not differs["clean"]:
        raise UserError("clean is the same for every sample; a probe has nothing to learn from.")
    for name in states:
        if not differs[name]:
            raise UserError(f"{name} and clean are identical. Give {name}'s own states.")
    if not differs["knockout from neutral"]:
        raise UserError(
            "knockout and neutral are identical, so the control is the knockout itself. Give the "
            "states under a knockout of tokens without subject or property as neutral."
        )
    return digest


def _check_finite(name: str, dtype: str, broken: np.ndarray, n: int) -> None:
    """Raise a UserError where there are `broken` pairs of sample and layer, both from 0."""
    if not len(broken):
        return
    do = "Extract these states again, or leave the samples out."
    if dtype == "float16":
        do = "float16 overflows above 65504: extract them in bfloat16 or float32."
    raise UserError(
        f"{name} holds NaN or inf for {len(np.unique(broken[:, 0]))} of {n} samples (first: "
        f"sample {broken[0, 0]} counted from 0, layer {broken[0, 1] + 1}). {do}"
    )
