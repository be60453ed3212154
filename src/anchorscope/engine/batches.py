"""Batches by tokens, not by count; they shrink by themselves when memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from anchorscope.engine import HALVED
from anchorscope.engine.limits import PackTooLong, bounds_of
from anchorscope.errors import UserError
from anchorscope.models import Model

T = TypeVar("T")
R = TypeVar("R")
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "MPS backend out of memory")


@dataclass(kw_only=True)
class Budget:
    """How many tokens go through the model at once; halved when memory runs out."""

    tokens: int = field(kw_only=False)
    written: int | None = None  # bytes for the keys and values of rows that are written to
    trunk: int | None = None  # and of those that are only read

    @classmethod
    def of(cls, model: Model) -> Budget:
        """What suits the model and its device; the same in every process."""
        bounds = bounds_of(model)
        return cls(bounds.tokens, written=bounds.written, trunk=bounds.trunk)


def in_batches(
    things: Iterable[T],
    work: Callable[[list[T]], R],
    *,
    length: Callable[[T], int],
    then: Callable[[T], Any],
    budget: Budget,
    rows: int | None = None,
) -> Iterator[tuple[list[T], R]]:
    """Each batch with what `work` makes of it: like lengths together, `budget` tokens at most.

    Where more than `rows` things are waiting, they go in batches of equal count.
    """
    waiting = sorted(things, key=lambda thing: (length(thing), then(thing)), reverse=True)
    while waiting:
        count = min(_fitting(waiting, length, budget.tokens), _share(len(waiting), rows))
        batch = waiting[: -count - 1 : -1]
        total = sum(length(thing) for thing in batch)
        try:
            done = _within_memory(work, batch)
        except PackTooLong as error:
            if count == 1 or total <= error.tokens:
                raise
            budget.tokens = min(budget.tokens, error.tokens)
            continue
        if not done:
            HALVED.append(total)
            budget.tokens = max(1, min(budget.tokens, total) // 2)
            # Here the error is gone, and with its traceback the tensors of the batch that failed.
            _release_memory()
            continue
        del waiting[-count:]
        # Not kept here: the next batch should not have to share the memory with this one.
        yield batch, done.pop()


def _within_memory(work: Callable[[list[T]], R], batch: list[T]) -> list[R]:
    """What `work` makes of a batch, alone in a list; nothing where memory ran out."""
    try:
        return [work(batch)]
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if len(batch) == 1:
            raise UserError(
                "Memory ran out with a single question. "
                "Choose another --device, a smaller --dtype or a smaller model."
            ) from None
    return []


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; a CPU and an Apple GPU have no type for it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY)


def _release_memory() -> None:
    """Return what the failed batch held to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def _share(waiting: int, rows: int | None) -> int:
    """The size of a batch if those waiting go in the fewest equal batches of `rows` at most."""
    return waiting if rows is None else -(-waiting // -(-waiting // rows))


def _fitting(waiting: list[T], length: Callable[[T], int], tokens: int) -> int:
    """How many things from the end of the list go into a batch; one at least."""
    count, total = 0, 0
    for thing in reversed(waiting):
        total += length(thing)
        if count and total > tokens:
            break
        count += 1
    return count
