"""Whether a worker computes what the first one did: the states of one fixed prompt, compared.

Another kind of GPU, another version of torch, a broken kernel: weights and settings agree, and the
states do not. The first worker's lie in the run folder.
"""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load, save

from anchorscope.engine.batches import Budget
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix
from anchorscope.errors import UserError
from anchorscope.evidence.shards import read_ends
from anchorscope.run_folder.store import Store

NAME = "fixed-prompt.safetensors"
_PROMPT = "The river that flows through the largest city of the country is called"
# Of a layer's own length. Rounding alone stays far below; another kernel in half precision near it.
_ROUNDING = {"torch.float32": 1e-4, "torch.float16": 1e-2, "torch.bfloat16": 5e-2}


def prove(store: Store, lease: Lease) -> None:
    """An error where this process's states are not the first worker's, but for rounding."""
    states = fixed_states(lease)
    store.create(NAME, save({"states": states}))
    first = load(store.file(NAME).read_bytes())["states"]
    most, apart = _ROUNDING.get(str(lease.model.dtype), 1e-4), distance(states, first)
    if not apart <= most:
        raise UserError(
            f"This worker's states of a fixed prompt are not those in {store.file(NAME)}: they "
            f"differ by {apart:.1g} of their length, and rounding explains {most:g}. Its device or "
            "its versions of torch and transformers are others. Use like machines, or another --out"
            " for this one."
        )


def fixed_states(lease: Lease) -> np.ndarray:
    """The states [layer, width] in float32 at the end of the fixed prompt."""
    ids = tuple(lease.model.tokenizer(_PROMPT)["input_ids"])
    budget = Budget.of(lease.model)
    states = read_ends(lease, Prefix((), None), {"fixed": ids}, budget=budget)["fixed"]
    return np.ascontiguousarray(states, dtype=np.float32)


def distance(states: np.ndarray, first: np.ndarray) -> float:
    """The largest difference of a layer, as a share of its length; infinite in another shape."""
    if states.shape != first.shape:
        return float("inf")
    apart = np.linalg.norm(states - first, axis=1) / np.linalg.norm(first, axis=1)
    return float(apart.max())
