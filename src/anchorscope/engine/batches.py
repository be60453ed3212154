"""Batch rows by number of tokens within a device's memory; halve batches that run out of it.

Batches must follow from what a run records, since rounding depends on what shares a batch. So the
bounds are powers of two, which a little more or less of free memory does not change; they are
written into run.json, and a continued run takes them from there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psutil
import torch
from torch import nn

from anchorscope.engine import HALVED
from anchorscope.errors import UserError
from anchorscope.models import Model

T = TypeVar("T")
R = TypeVar("R")

# --- How much may go through a model at once ---

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
_LEAST = 256  # tokens; fewer would be too slow, and running out of memory is still caught
# Of a GPU's room a half for packs, a quarter for keys, values and the states of answers; the rest
# is for what is not counted: fragments, logits.
_PACKS, _KEYS = 2, 4
_OWN = 1 << 30  # bytes of a GPU that CUDA and its libraries take for themselves, about
# Bytes that a token of a pack takes on a GPU at most: attention that is cut after the softmax in
# some heads writes scores, masks and weights out for each head and for so many keys.
_PER_SCORE, _KEYS_SEEN = 16, 1280


@dataclass(kw_only=True)
class Budget:
    """Limits of a batch: tokens, halved when memory runs out, and bytes of keys and values."""

    tokens: int = field(kw_only=False)  # of one pass
    # Bytes for keys, values and states of rows that answers are written to; None: any.
    written: int | None = None
    trunk: int | None = None  # the same for rows that are only read

    @classmethod
    def of(cls, model: Model) -> Budget:
        """The bounds that a model's run began with, or those of its device and shape.

        The same in every process.
        """
        facts, half = facts_of(model.lm), model.dtype.itemsize == 2
        if facts.bounds is not None:
            bounds = facts.bounds
        elif kind_of(model) == "cuda":
            config = model.lm.config.get_text_config()
            wide = 16 * config.hidden_size + 4 * (getattr(config, "intermediate_size", None) or 0)
            scores = config.num_attention_heads * _KEYS_SEEN * _PER_SCORE
            bounds = bounds_within(_room(model), scores + wide * model.dtype.itemsize)
        else:
            bounds = bounds_on_cpu(all_memory(), half=half)
        return replace(bounds, tokens=min(facts.largest or bounds.tokens, bounds.tokens))


@dataclass(frozen=True)
class ModelFacts:
    """Measured limits of a model: batch bounds, proved pack length, rounding, use of kernels."""

    bounds: Budget | None = None  # the run's first bounds; None: those of the device
    proved: int | None = None  # tokens of the longest pack whose rows did not change one another
    rounding: float = 0.0  # how far rounding may move a state
    largest: int | None = None  # most tokens of a correct pack; None: no limit is known
    fused: bool = True  # False: a check failed with the Triton kernels, which are not used


_FACTS: WeakKeyDictionary[nn.Module, ModelFacts] = WeakKeyDictionary()


def facts_of(lm: nn.Module) -> ModelFacts:
    """The measured limits of a model, or the defaults."""
    return _FACTS.get(lm, ModelFacts())


def set_facts(lm: nn.Module, facts: ModelFacts) -> None:
    """Store the measured limits of a model."""
    _FACTS[lm] = facts


def bounds_on_cpu(memory: int, *, half: bool = False) -> Budget:
    """Batch bounds on a CPU with `memory` bytes of main memory."""
    most = _HALF_TOKENS if half else TOKENS["cpu"]
    tokens = min(most, max(_LEAST, power_of_two(memory // _PER_TOKEN)))
    return Budget(tokens, written=min(_WRITTEN, power_of_two(memory // _SHARE)))


def bounds_within(room: int, token: float, *, most: int = TOKENS["cuda"]) -> Budget:
    """Batch bounds on a GPU with `room` bytes left, where a token of a pack takes `token` bytes."""
    tokens = most
    while tokens > _LEAST and tokens * token > room / _PACKS:
        tokens //= 2
    keys = power_of_two(room // _KEYS)
    return Budget(tokens, written=keys, trunk=keys)


def _room(model: Model) -> int:
    """Bytes for batches on the GPU of a model that has the least room."""
    held = {model.device: 0}
    for weight in model.lm.parameters():
        if weight.device.type == "cuda":
            held[weight.device] = held.get(weight.device, 0) + weight.nbytes
    rooms = []
    for device, weights in held.items():
        free, total = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        rooms.append(room_on(total, weights, free + kept))  # what torch keeps is free as well
    return min(rooms)


def room_on(total: int, held: int, free: int) -> int:
    """The bytes of a GPU that batches may use, from its size and what the model holds of it.

    What is free just now differs from run to run and would change the batches, and with them the
    rounding. It counts only where less than half of the room is free.
    """
    room = max(0, total - held - _OWN)
    return room if free >= room // 2 else free


def all_memory() -> int:
    """Bytes of main memory of the machine, or of its container where that has less."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    total = psutil.virtual_memory().total
    return min(total, int(text)) if text.isdecimal() else total


def power_of_two(number: int) -> int:
    """The largest power of two that is at most a number; 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)


def kind_of(model: Model) -> str:
    """The kind of device that bounds depend on: cuda or cpu."""
    return "cuda" if model.device.type == "cuda" else "cpu"


class PackTooLong(UserError):
    """Raised for a pack longer than the model computes correctly; `tokens` is the limit."""

    def __init__(self, model: Model, *, right: int, given: int) -> None:
        super().__init__(
            f"{model.name} looks at places in a pack and is right up to {right} tokens; "
            f"{given} were given. Use shorter prompts or fewer examples."
        )
        self.tokens = right


# --- How many questions are saved together ---

_SHARD = {"cpu": 64, "cuda": 4096}  # questions between two saves, at most
# On a GPU decoding many answers takes hardly longer than decoding few; their states under one pass
# may take _STATES bytes of main memory. Independent of the number of processes: one process and
# several must make the same batches.
_LEAST_GPU, _STATES = 1024, 1 << 28
# Of a shard on a CPU: half a minute on two cores, so that a stop loses no more than a minute.
_LEAST_CPU, _OPERATIONS = 4, 1 << 41
_TOKENS_EACH = 64  # of a question with its answer and interventions, about


def shard_of(model: Model) -> int:
    """The number of questions in a shard: fewer for a model that is slow on a CPU, or wide."""
    size = _SHARD[kind_of(model)]
    if kind_of(model) == "cuda":
        state = 2 * model.blocks * model.parts.width  # bytes in half precision
        return max(_LEAST_GPU, min(size, power_of_two(_STATES // state)))
    weights = sum(p.numel() for block in model.parts.blocks for p in block.parameters())
    while size > _LEAST_CPU and size * _TOKENS_EACH * 2 * weights > _OPERATIONS:
        size //= 2
    return size


# --- Batches ---


def in_batches(
    things: Iterable[T],
    work: Callable[[list[T]], R],
    *,
    length: Callable[[T], int],
    then: Callable[[T], Any],
    budget: Budget,
    rows: int | None = None,
) -> Iterator[tuple[list[T], R]]:
    """Yield batches of similar length, `budget` tokens at most, with the result of `work`.

    Where more than `rows` things are waiting, they go in the fewest batches of equal count.
    """
    waiting = sorted(things, key=lambda thing: (length(thing), then(thing)), reverse=True)
    while waiting:
        share = len(waiting) if rows is None else -(-len(waiting) // -(-len(waiting) // rows))
        count = total = 0
        for thing in islice(reversed(waiting), share):
            tokens = length(thing)
            if count and total + tokens > budget.tokens:
                break
            count, total = count + 1, total + tokens
        batch, made = waiting[: -count - 1 : -1], []
        try:
            made.append(work(batch))
        except PackTooLong as error:
            if count == 1 or total <= error.tokens:
                raise
            budget.tokens = min(budget.tokens, error.tokens)
            continue
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if count == 1:
                raise UserError(
                    "Memory ran out with a single question. "
                    "Choose another --device, a smaller --dtype or a smaller model."
                ) from None
        if not made:
            # Here the error is gone, and with its traceback the tensors of the batch that failed.
            HALVED.append(total)
            budget.tokens = max(1, min(budget.tokens, total) // 2)
            _release_memory()
            continue
        del waiting[-count:]
        # Not kept here: the next batch should not have to share the memory with this one.
        yield batch, made.pop()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory; a CPU and an Apple GPU have no type for it."""
    words = ("DefaultCPUAllocator", "can't allocate memory", "MPS backend out of memory")
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or any(word in str(error) for word in words)


def _release_memory() -> None:
    """Release the memory of the failed batch to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
