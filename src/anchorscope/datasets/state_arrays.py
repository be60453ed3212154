"""Open and validate arrays of states that were extracted elsewhere.

The arrays of a .safetensors file are mapped into memory and read some rows at a time; those of a
.npz file are read whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from anchorscope.errors import UserError, user_path
from anchorscope.records import Answer, Question, Sample, Span

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
_BLOCK = 2**24  # numbers read at a time: 64 MB in float32
# Raised for an archive that is damaged, locked, or packed in another way.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, TypeError, LookupError,
    NotImplementedError, OverflowError, RuntimeError, MemoryError, SafetensorError,
)  # fmt: skip
Array = Union[np.ndarray, "torch.Tensor"]  # a tensor where numpy has no such dtype: bfloat16
Arrays = Mapping[str, Array]


def open_arrays(source: str | Path | Mapping[str, Any]) -> dict[str, Array]:
    """Open the arrays of a file or a mapping, by name."""
    if isinstance(source, Mapping):
        given = {name: value for name, value in source.items() if value is not None}
        return {name: np.atleast_1d(np.asarray(value)) for name, value in given.items()}
    path = user_path(source)
    if path.suffix not in ENDINGS or not path.is_file():
        raise UserError(
            f"States cannot be read from {path}. Accepted: a file that ends in "
            f"{' or '.join(ENDINGS)}."
        )
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: np.atleast_1d(archive[name]) for name in archive.files}
        return _open_safetensors(path)
    except _DAMAGE as error:
        raise UserError(
            f"{path} is damaged or no {path.suffix} file of numbers and texts ({error}). Write it "
            "again, texts with dtype str."
        ) from error


def _open_safetensors(path: Path) -> dict[str, Array]:
    """Open the tensors of a file, and the lists of text that its metadata holds as JSON."""
    arrays: dict[str, Array] = {}
    with safe_open(path, framework="pt") as file:
        for name, text in (file.metadata() or {}).items():
            if text.lstrip().startswith("["):
                arrays[name] = np.asarray(json.loads(text), dtype=str)
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            tensor = file.get_tensor(name)  # memory-mapped
            plain = hasattr(np, dtype_of(tensor)) or dtype_of(tensor) == "bool"
            arrays[name] = np.atleast_1d(tensor.numpy()) if plain else tensor
    return arrays


def dtype_of(array: Array) -> str:
    return getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))


def blocks_of(array: Array, *, passes: int = 1) -> Iterator[tuple[int, np.ndarray]]:
    """Yield an array in blocks of rows, each with the number of its first row, bfloat16 as float32.

    `passes`: the number of arrays that are read together.
    """
    size = max(1, _BLOCK // (max(1, math.prod(array.shape[1:])) * passes))
    for start in range(0, len(array), size):
        rows = array[start : start + size]
        yield start, rows if isinstance(rows, np.ndarray) else rows.float().numpy()


def values(array: Array) -> list[Any]:
    """Convert an array [sample] to Python values, bytes to text."""
    return [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]


def facts_of(arrays: Arrays, *, dataset: str) -> pd.DataFrame:
    """Tabulate the facts of the samples, one row each; a missing text is "", a number NaN."""
    n = len(arrays["clean"])
    facts = pd.DataFrame({"z": np.array(values(arrays["z"]), dtype=np.int64)})
    for name in TEXTS:
        texts = pd.Series(values(arrays[name]) if name in arrays else [""] * n).astype(str)
        facts[name] = texts.where(~texts.isin(["nan", "None"]), "")
    for name in NUMBERS:
        facts[name] = np.array(values(arrays[name]) if name in arrays else [np.nan] * n, float)
    ids = facts["id"] if "id" in arrays else pd.Series(range(n)).astype(str)
    facts["id"] = f"{dataset}:own:" + ids
    return facts


def check_arrays(arrays: Arrays) -> str:
    """Validate the arrays and hash those that are used; a UserError says what is wrong."""
    missing = [name for name in (*NEEDED, "z") if name not in arrays]
    if missing:
        clean_alone = " Clean states alone are enough for a detector (`detect collect --states`)."
        raise UserError(
            f"There is no array {' and no array '.join(missing)}. Arrays there: "
            f"{', '.join(arrays) or 'none'}. Needed: {', '.join((*NEEDED, 'z'))}; optional: "
            f"{', '.join((*OPTIONAL, *FACTS))}.{clean_alone if missing == ['knockout'] else ''}"
        )
    states = {name: arrays[name] for name in (*NEEDED, *OPTIONAL) if name in arrays}
    shape = tuple(states["clean"].shape)
    for name, array in states.items():
        same = tuple(array.shape) == shape and len(shape) == 3 and 0 not in shape
        if not same or dtype_of(array) not in _FLOATS:
            raise UserError(
                f"{name} is {list(array.shape)} of {dtype_of(array)} and clean {list(shape)}; "
                f"states are [sample, layer, width] of {', '.join(_FLOATS)}, all of the same "
                f"shape. One layer alone is {name}[:, None]."
            )
    for name in ("z", *FACTS):
        if name in arrays and tuple(arrays[name].shape) != shape[:1]:
            raise UserError(
                f"{name} is {list(arrays[name].shape)}; expected one entry for each of the "
                f"{shape[0]} samples of clean."
            )
        numbers = name not in arrays or dtype_of(arrays[name]).startswith(("float", "int", "uint"))
        if name in NUMBERS and not numbers:
            raise UserError(f"{name} holds {dtype_of(arrays[name])}; expected numbers.")
    counts = Counter(values(arrays["z"]))
    if other := [value for value in counts if value not in (0, 1)]:
        shown = ", ".join(repr(value) for value in other[:3])
        raise UserError(f"z holds {shown}; accepted: 1 (wrong) and 0 (right).")
    if "id" in arrays:
        (id, times), *_ = Counter(map(str, values(arrays["id"]))).most_common(1)
        if times > 1:
            raise UserError(f"The id '{id}' is there {times} times; every sample needs its own.")
    digest = _check_states(states)
    for name in ("z", *FACTS):
        digest.update(repr((name, values(arrays[name]) if name in arrays else None)).encode())
    return digest.hexdigest()


def _check_states(states: Arrays) -> hashlib.blake2b:
    """Hash all states, and check that they are finite and that passes differ from each other."""
    digest = hashlib.blake2b(digest_size=16)
    broken: dict[str, list[np.ndarray]] = {name: [] for name in states}
    # Pairs that are the same so far; of clean itself, with its first sample.
    same = {(name, "clean") for name in states}
    same |= {("neutral", "knockout")} if "neutral" in states else set()
    (_, first), *_ = blocks_of(states["clean"][:1])
    for parts in zip(*(blocks_of(a, passes=len(states)) for a in states.values()), strict=True):
        start, block = parts[0][0], dict(zip(states, (part for _, part in parts), strict=True))
        finite = {}
        for name, part in block.items():
            digest.update(np.ascontiguousarray(part).data)
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as inf
                finite[name] = np.isfinite(part.astype(np.float32, copy=False))
            bad = ~finite[name].all(axis=2)
            if name in OPTIONAL:  # NaN throughout: the sample has no such state
                absent: Any = np.isnan(part).all(axis=(1, 2))
                bad &= ~absent[:, None]
            broken[name].append(np.argwhere(bad) + np.array([start, 0]))
        for one, other in list(same):
            held = first if one == other else block[other]
            if ((block[one] != held) & finite[one]).any():
                same.discard((one, other))
    for name, array in states.items():
        if len(places := np.concatenate(broken[name])):
            do = "Extract these states again, or leave the samples out."
            if dtype_of(array) == "float16":
                do = "float16 overflows above 65504: extract them in bfloat16 or float32."
            raise UserError(
                f"{name} holds NaN or inf for {len(np.unique(places[:, 0]))} of {len(array)} "
                f"samples (first: sample {places[0, 0]} counted from 0, layer "
                f"{places[0, 1] + 1}). {do}"
            )
    if ("clean", "clean") in same:
        raise UserError("clean is the same for every sample; a probe has nothing to learn from.")
    for one, other in sorted(same):
        raise UserError(f"{one} and {other} are identical. Give {one}'s own states.")
    return digest


def sample_of(row: Mapping[Any, Any], dataset: str) -> Sample:
    """Make a sample from a row of facts; the id replaces a missing text or entity."""
    id, reply = row["id"], row["answer"]
    return Sample(
        question=Question(
            id=id,
            dataset=dataset,
            text=row["question"] or id,
            answers=(),
            relation=row["relation"] or None,
            popularity=None if math.isnan(row["popularity"]) else row["popularity"],
            entity=row["entity"] or id,
        ),
        answer=Answer(
            id=id, text=reply, token_ids=(), log_probs=(), first_entropy=np.nan, finished=True
        ),
        verdict="wrong" if row["z"] else "right",
        finder="own states",
        spans=(),
        answer_span=Span(0, len(reply)) if reply else None,
        # Placeholders for unknown positions: they mark the sample as usable.
        prompt_ids=(0, 1),
        question_tokens=(1,),
        exact_question=(1,),
        exact_answer=(2,),
        kind=row["kind"],
    )
