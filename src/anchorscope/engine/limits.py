"""How much may go through a model at once: bounds of memory, and packs that are proved right.

Batches must follow from what a run records, since rounding depends on what shares a batch. So the
bounds are powers of two, which a little more or less of free memory does not change; they are
written into run.json, and a continued run takes them from there.

A model that looks at places in a pack is right only where they and positions are few. The checks
on load try a full pack; where a run brings a longer one, made-up rows of that length are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psutil
from torch import nn

from anchorscope.engine.layout import Layout
from anchorscope.errors import UserError
from anchorscope.models import Model

# Tokens of one pass: large enough for matrix products to run at full speed and for many answers to
# be written at once, small enough that a batch's scores stay far below the weights in memory.
TOKENS = {"cpu": 2048, "cuda": 65536}
# On a CPU in half precision: the matrix units that bfloat16 goes with (AMX) want larger products.
_HALF_TOKENS = 4096
# Keys, values and states of rows that answers are written to, on a CPU: a share of all memory, not
# of what is free just now, so that two runs on a machine make the same batches. The prefix is in
# every row; more rows than fit into a GiB do not decode faster.
_SHARE, _WRITTEN = 16, 1 << 30
_PER_TOKEN = 2 << 20  # bytes of all memory for each token of a pass
_LEAST = 256  # tokens; less would crawl, and memory that runs out is still caught
# Of what is free a half for packs, a quarter for keys, values and the states of answers; the rest
# is for what is not counted: fragments, logits.
_PACKS, _KEYS = 2, 4


class Bounds(NamedTuple):
    """What may go through a model at once."""

    tokens: int  # of one pass
    written: int | None  # bytes for keys, values and states of rows that answers are written to
    trunk: int | None = None  # the same of rows that are read alone; None: any


class PackProof(NamedTuple):
    """Up to how many tokens the rows of a pack were seen not to change one another."""

    tokens: int
    limit: float  # what rounding may move a state by
    more: Callable[[Any, int], bool]  # whether made-up packs of a lease are right up to so many


@dataclass(frozen=True)
class ModelFacts:
    """What the checks found out about a model, beside that it is understood."""

    bounds: Bounds | None = None  # measured; None: what is usual on its device
    largest: int | None = None  # tokens of a pack, where it looks at their indices; None: any
    pack_proof: PackProof | None = None
    fused: bool = True  # False: the kernels of engine/fused failed a check, and stay out


_FACTS: WeakKeyDictionary[nn.Module, ModelFacts] = WeakKeyDictionary()


def facts_of(lm: nn.Module) -> ModelFacts:
    """What is known about a model so far."""
    return _FACTS.get(lm, ModelFacts())


def set_facts(lm: nn.Module, facts: ModelFacts) -> None:
    """Remember what was found out about a model, or what its run began with."""
    _FACTS[lm] = facts


def merge_facts(lm: nn.Module, earlier: ModelFacts) -> None:
    """Remember what was found out earlier, and keep what longer packs have shown since."""
    since = facts_of(lm).pack_proof
    if since and earlier.pack_proof and since.tokens >= earlier.pack_proof.tokens:
        earlier = replace(earlier, pack_proof=since, largest=facts_of(lm).largest)
    set_facts(lm, earlier)


def bounds_of(model: Model) -> Bounds:
    """The bounds that a model's facts name; those usual for its device where they name none."""
    facts = facts_of(model.lm)
    half = model.dtype.itemsize == 2
    bounds = facts.bounds or usual_bounds(kind_of(model), all_memory(), half=half)
    return bounds._replace(tokens=min(facts.largest or bounds.tokens, bounds.tokens))


def usual_bounds(kind: str, memory: int, *, half: bool = False) -> Bounds:
    """The bounds on a device where nothing was measured, with so many bytes of main memory."""
    if kind != "cpu":
        return Bounds(TOKENS[kind], None)
    most = _HALF_TOKENS if half else TOKENS["cpu"]
    tokens = min(most, max(_LEAST, power_of_two(memory // _PER_TOKEN)))
    return Bounds(tokens, min(_WRITTEN, power_of_two(memory // _SHARE)))


def all_memory() -> int:
    """The bytes of main memory this process may use at most: the machine's, or its container's."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    total = psutil.virtual_memory().total
    return min(total, int(text)) if text.isdecimal() else total


def power_of_two(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << max(0, number.bit_length() - 1)


def kind_of(model: Model) -> str:
    """The kind of device that the bounds go by."""
    return "cuda" if model.device.type == "cuda" else "cpu"


def bounds_within(free: int, token: float, *, most: int = TOKENS["cuda"]) -> Bounds:
    """The bounds where `free` bytes are left and one token of a pack takes `token` bytes."""
    tokens = most
    while tokens > _LEAST and tokens * token > free / _PACKS:
        tokens //= 2
    keys = power_of_two(free // _KEYS)
    return Bounds(tokens, keys, keys)


# --- Packs longer than any before ---


class PackTooLong(UserError):
    """The model looks at places in a pack, and is right up to so many tokens."""

    def __init__(self, model: Model, *, right: int, given: int) -> None:
        super().__init__(
            f"{model.name} looks at places in a pack and is right up to {right} tokens; "
            f"{given} were given. Use shorter prompts or fewer examples."
        )
        self.tokens = right


def prove_length(lease: Any, layout: Layout) -> None:
    """Try a made-up pack as long as this one, where none so long was tried yet.

    A pack is as long as its tokens or as their positions. PackTooLong where its rows change one
    another.
    """
    facts = facts_of(lease.model.lm)
    proof = facts.pack_proof
    # The columns bound the positions, and counting them makes no GPU wait.
    if proof is None or lease.trying or max(len(layout.place), layout.keys) <= proof.tokens:
        return
    longest = max(len(layout.place), int(layout.query_at.max()) + 1)
    if longest <= proof.tokens:
        return
    observer, lease.observer, lease.trying = lease.observer, None, True
    try:
        right = proof.tokens if facts.largest else _right_up_to(lease, proof, longest)
    finally:
        lease.observer, lease.trying = observer, False
    largest = right if right < longest else facts.largest
    proof = proof._replace(tokens=right)
    set_facts(lease.model.lm, replace(facts, pack_proof=proof, largest=largest))
    if right < longest:
        raise PackTooLong(lease.model, right=right, given=longest)


def _right_up_to(lease: Any, proof: PackProof, longest: int) -> int:
    """The most tokens of a pack that are right: `longest` or more, or else fewer.

    Powers of two, so that batches of like size come to the same end.
    """
    power = 1 << (longest - 1).bit_length()
    for tokens in (power, longest):
        if proof.more(lease, tokens):
            return tokens
    while (power := power // 2) > proof.tokens:
        if proof.more(lease, power):
            return power
    return proof.tokens
