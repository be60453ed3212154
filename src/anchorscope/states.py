"""States on disk: [question, layer, width] and the ids they belong to, a shard at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from anchorscope.errors import UserError
from anchorscope.store import Store


def shard_name(intervention: str, number: int) -> str:
    """The name of a shard's file in the run folder."""
    return f"states/{intervention}/{number:05d}.safetensors"


def save_states(store: Store, name: str, ids: Sequence[str], states: np.ndarray) -> None:
    """Stores states [question, layer, width] as they come: in half precision where they fit it."""
    broken = [id for id, state in zip(ids, states, strict=True) if not np.isfinite(state).all()]
    if broken:
        raise UserError(
            f"{len(broken)} states for {name} are NaN or infinite (first: {broken[0]}). "
            "The model overflows in this dtype: take --dtype float32 and another --out."
        )
    tensors = {"states": np.ascontiguousarray(states)}
    meta = {"ids": json.dumps(list(ids))}
    store.write(name, lambda path: save_file(tensors, path, metadata=meta))


def load_states(store: Store, intervention: str, ids: Sequence[str], shards: int) -> np.ndarray:
    """States [question, layer, width] in float32 in the order of `ids`; NaN where there is none."""
    place = {id: row for row, id in enumerate(ids)}
    out: np.ndarray | None = None
    for number in range(shards):
        found, states = _read(store.file(shard_name(intervention, number)))
        if out is None:
            out = np.full((len(ids), *states.shape[1:]), np.nan, dtype=np.float32)
        here = [(place[id], row) for row, id in enumerate(found) if id in place]
        if here:
            to, of = map(list, zip(*here, strict=True))
            out[to] = states[of]
    assert out is not None, "a run has one shard at least"
    return out


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["ids"]), file.get_tensor("states")
