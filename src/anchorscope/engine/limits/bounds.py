"""How much may go through a model at once, decided ahead from the memory of its device.

Batches must follow from what a run records, since rounding depends on what shares a batch. So the
bounds are powers of two, which a little more or less of free memory does not change; they are
written into run.json, and a continued run takes them from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psutil
from torch import Tensor, nn

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


class Proved(NamedTuple):
    """Up to how many tokens the rows of a pack were seen not to change one another."""

    tokens: int
    limit: float  # what rounding may move a state by
    near: Callable[[Tensor, Tensor], bool]  # whether states are the same but for rounding
    more: Callable[[Any, int], bool]  # whether made-up packs of a lease are right up to so many


@dataclass(frozen=True)
class Noted:
    """What the checks found out about a model, beside that it is understood."""

    bounds: Bounds | None = None  # measured; None: what is usual on its device
    largest: int | None = None  # tokens of a pack, where it looks at their indices; None: any
    proved: Proved | None = None
    fused: bool = True  # False: the kernels of engine/fused failed a check, and stay out


_NOTED: WeakKeyDictionary[nn.Module, Noted] = WeakKeyDictionary()


def noted_of(lm: nn.Module) -> Noted:
    """What was noted about a model so far."""
    return _NOTED.get(lm, Noted())


def note(lm: nn.Module, noted: Noted) -> None:
    """Notes what was found out about a model, or what its run began with."""
    _NOTED[lm] = noted


def note_again(lm: nn.Module, noted: Noted) -> None:
    """Notes what was found out before, and keeps what longer packs have shown since."""
    since = noted_of(lm)
    if since.proved and noted.proved and since.proved.tokens >= noted.proved.tokens:
        noted = replace(noted, proved=since.proved, largest=since.largest)
    note(lm, noted)


def bounds_of(model: Model) -> Bounds:
    """The bounds noted for a model; those usual for its device where none were."""
    noted = noted_of(model.lm)
    half = model.dtype.itemsize == 2
    bounds = noted.bounds or usual_bounds(kind_of(model), all_memory(), half=half)
    return bounds._replace(tokens=min(noted.largest or bounds.tokens, bounds.tokens))


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
