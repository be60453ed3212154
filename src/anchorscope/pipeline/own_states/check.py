"""What can be wrong with states that were extracted elsewhere, each said in one sentence."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

import numpy as np

from anchorscope.errors import UserError
from anchorscope.pipeline.own_states.arrays import StoredArray
from anchorscope.probes.folds import MIN_OVERALL

NEEDED = ("clean", "knockout")
# A sample that has no state under one of these is NaN throughout. `question` is the name of a text
# as well: with three axes it is the pass.
OPTIONAL = ("neutral", "content", "question_pass", "answer_only", "retest", "retest_knockout")
TEXTS = ("id", "question", "answer", "entity", "relation", "kind")
NUMBERS = ("popularity", "length", "exact_tokens")
FACTS = (*TEXTS, *NUMBERS)
_WHY = {  # what an intervention's states are for, where they are the clean ones
    "knockout": "nothing was knocked out",
    "neutral": "there is no control",
    "content": "nothing was knocked out",
    "question_pass": "nothing was knocked out",
    "answer_only": "the question was never left out",
    "retest": "the prompt was the same",
    "retest_knockout": "nothing was knocked out",
}
_NUMERIC = ("float", "bfloat", "int", "uint", "bool", "i", "u")  # safetensors says I64, U8
Arrays = Mapping[str, StoredArray]


def check_arrays(arrays: Arrays) -> str:
    """The hash of all that is read; a UserError that says what is wrong with it."""
    _check_names(arrays)
    states = {name: arrays[name] for name in (*NEEDED, *OPTIONAL) if name in arrays}
    for name, of in states.items():
        _check_shape(name, of, states["clean"])
    n = states["clean"].shape[0]
    for name in ("z", *FACTS):
        if name in arrays and arrays[name].shape != (n,):
            raise UserError(
                f"{name} is {list(arrays[name].shape)}; expected one entry for each of the {n} "
                "samples of clean."
            )
    for name in NUMBERS:
        if name in arrays and not arrays[name].dtype.lower().startswith(_NUMERIC):
            raise UserError(f"{name} holds {arrays[name].dtype}; expected numbers.")
    _check_z(arrays["z"])
    _check_ids(arrays)
    digest = _check_states(states)
    for name in ("z", *FACTS):
        digest.update(repr((name, arrays[name].values() if name in arrays else None)).encode())
    return digest.hexdigest()


def _check_names(arrays: Arrays) -> None:
    missing = [name for name in (*NEEDED, "z") if name not in arrays]
    if missing:
        raise UserError(
            f"There is no array {' and no array '.join(missing)}. Arrays there: "
            f"{', '.join(arrays) or 'none'}. Needed: {', '.join((*NEEDED, 'z'))}; optional: "
            f"{', '.join((*OPTIONAL, *FACTS))}."
        )


def _check_shape(name: str, of: StoredArray, clean: StoredArray) -> None:
    if not of.dtype.startswith(("float", "bfloat")):
        raise UserError(f"{name} holds {of.dtype}; states are float16, bfloat16, float32, float64.")
    if len(of.shape) != 3:
        raise UserError(
            f"{name} is {list(of.shape)}; states are [sample, layer, width]. One layer alone is "
            f"{name}[:, None]."
        )
    for axis, what in enumerate(("samples", "layers", "width")):
        if not of.shape[axis]:
            raise UserError(f"{name} is {list(of.shape)}: it has no {what}.")
    if of.shape != clean.shape:
        raise UserError(
            f"{name} is {list(of.shape)} and clean {list(clean.shape)}; both must hold the same "
            "samples, layers and width."
        )


def _check_z(of: StoredArray) -> None:
    counts = Counter(of.values())
    if other := [value for value in counts if value not in (0, 1)]:
        shown = ", ".join(repr(value) for value in other[:3])
        raise UserError(f"z holds {shown}; accepted: 1 (wrong) and 0 (right).")
    wrong, right = counts[1], counts[0]
    if not (wrong and right):
        raise UserError(
            f"All {wrong + right} samples have z = {1 if wrong else 0}; probes need wrong (1) and "
            "right (0) answers."
        )
    if min(wrong, right) < MIN_OVERALL:
        raise UserError(
            f"z has {wrong} wrong and {right} right answers; probes need at least {MIN_OVERALL} "
            "of each. Give more samples."
        )


def _check_ids(arrays: Arrays) -> None:
    if "id" in arrays:
        (id, times), *_ = Counter(map(str, arrays["id"].values())).most_common(1)
        if times > 1:
            raise UserError(f"The id '{id}' stands {times} times; every sample needs its own.")


def _check_states(states: Arrays) -> hashlib.blake2b:
    """One reading of everything: finite, and moved by each intervention."""
    digest, n, at = hashlib.blake2b(digest_size=16), states["clean"].shape[0], 0
    broken: dict[str, list[np.ndarray]] = {name: [] for name in states}
    differs = dict.fromkeys([*states, "knockout from neutral"], False)
    first: np.ndarray | None = None
    for parts in zip(*(of.blocks(passes=len(states)) for of in states.values()), strict=True):
        block = dict(zip(states, parts, strict=True))
        first = block["clean"][:1] if first is None else first
        for name, part in block.items():
            digest.update(np.ascontiguousarray(part).data)
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as inf
                whole = np.isfinite(part.astype(np.float32, copy=False))
            absent = np.isnan(part).all(axis=(1, 2)) & (name in OPTIONAL)
            bad = ~whole.all(axis=2) & ~absent[:, None]
            broken[name].append(np.argwhere(bad) + np.array([at, 0]))
            other = first if name == "clean" else block["clean"]
            differs[name] |= bool(((part != other) & whole).any())
        both = block["knockout"], block.get("neutral")
        differs["knockout from neutral"] |= both[1] is None or bool((both[0] != both[1]).any())
        at += len(block["clean"])
    for name, of in states.items():
        _check_finite(name, of, np.concatenate(broken[name]), n)
    _check_moved(differs)
    return digest


def _check_finite(name: str, of: StoredArray, broken: np.ndarray, n: int) -> None:
    """`broken` are pairs of sample and layer, from 0."""
    if not len(broken):
        return
    do = "Extract these states again, or leave the samples out."
    if of.dtype == "float16":
        do = "float16 overflows above 65504: extract them in bfloat16 or float32."
    elif of.dtype == "float64":
        do = "They are read in float32, which ends at 3.4e38. " + do
    raise UserError(
        f"{name} holds NaN or inf for {len(np.unique(broken[:, 0]))} of {n} samples (first: "
        f"sample {broken[0, 0]} counted from 0, layer {broken[0, 1] + 1}). {do}"
    )


def _check_moved(differs: Mapping[str, bool]) -> None:
    if not differs["clean"]:
        raise UserError("clean is the same for every sample; a probe has nothing to learn from.")
    for name, why in _WHY.items():
        if not differs.get(name, True):
            raise UserError(f"{name} and clean are identical: {why}. Give {name}'s own states.")
    if not differs["knockout from neutral"]:
        raise UserError(
            "knockout and neutral are identical, so the control is the knockout itself. Give the "
            "states under a knockout of tokens without subject or property as neutral."
        )
