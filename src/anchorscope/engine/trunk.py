"""The clean part that everything shares: the prefix once a run, each question once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.distinct import Stretch, distinct_tokens
from anchorscope.engine.layout import PAD, Layout
from anchorscope.engine.lease import Lease, Read
from anchorscope.engine.memory import Growing, Pair
from anchorscope.engine.transfer import sent


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the tokens that begin every prompt of a run."""

    ids: tuple[int, ...]
    pairs: tuple[Pair, ...] | None  # one a block, [1, key head, prefix, head width]

    def __len__(self) -> int:
        return len(self.ids)

    def rows_within(
        self, memory: int | None, *, room: int, beside: int = 0, apart: bool = False
    ) -> int | None:
        """How many rows with `room` positions of their own fit into `memory` bytes; None: any.

        `beside` are the bytes of a row that are no keys and values. The prefix is in the buffer of
        every row, but where a kernel reads it in place (`apart`): there it is held once.
        """
        pairs = self.pairs or ()
        whole = sum(key.nbytes + value.nbytes for key, value in pairs)
        position = whole // max(1, len(self))
        row = position * (room if apart else len(self) + room) + beside
        if memory is None or row == 0:
            return None
        return max(1, (memory - (whole if apart else 0)) // row)


@dataclass(frozen=True)
class Trunk:
    """The clean keys and values of a batch of prompts after the prefix, padded on the left."""

    prefix: Prefix
    turns: tuple[tuple[int, ...], ...]  # each row's tokens
    at: Tensor  # their positions [row, column], PAD for padding
    pairs: tuple[Pair, ...]  # one a block, [row, key head, column, head width]


@dataclass(frozen=True)
class Grown:
    """A trunk with the memory that can go on from it, and what its last tokens gave."""

    trunk: Trunk
    memory: Growing
    last: Read


def shared_prefix(prompts: Sequence[Sequence[int]], stop: int) -> tuple[int, ...]:
    """The tokens that begin every prompt, `stop` at most; one is left to each prompt."""
    stop = min([stop, *(len(prompt) - 1 for prompt in prompts)])
    first = tuple(prompts[0][:stop])
    for prompt in prompts:
        if tuple(prompt[: len(first)]) == first:
            continue
        same = (i for i, (a, b) in enumerate(zip(first, prompt, strict=False)) if a != b)
        first = first[: next(same, len(first))]
    return first


def read_prefix(lease: Lease, ids: Sequence[int]) -> Prefix:
    """The prefix with its keys and values, computed once."""
    if not ids:
        return Prefix((), None)
    at = torch.arange(len(ids), device=lease.model.device)[None]
    memory = Growing(lease.model.blocks, len(ids), apart=lease.apart)
    tokens = torch.tensor([list(ids)], device=lease.model.device)
    lease.run(tokens, Layout(at, at, prefix_length=0), memory)
    # Copies, which later passes may take gradients through.
    own = (memory.own(block, len(ids)) for block in range(lease.model.blocks))
    return Prefix(tuple(ids), tuple((key.clone(), value.clone()) for key, value in own))


def grow_trunk(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    room: int,
    head: bool,
    also_at: Sequence[int] | None = None,
) -> Grown:
    """The trunk of these prompts, with `room` for as many tokens more in its memory.

    States are kept at each prompt's last token, and at one more position where `also_at` says so.
    """
    turns = tuple(tuple(prompt[len(prefix) :]) for prompt in prompts)
    tokens = pad_left(turns, 0, lease.model.device)
    at = pad_left([range(len(prefix), len(p)) for p in prompts], PAD, lease.model.device)
    memory = Growing(lease.model.blocks, at.shape[1] + room, prefix.pairs, apart=lease.apart)
    sizes = [len(turn) for turn in turns]
    # Turns may begin alike. Our kernels for a GPU take the tokens of a row one after the other.
    stretches = (Stretch(turn, range(len(turn))) for turn in turns)
    distinct = None if lease.apart else distinct_tokens(stretches)
    layout = Layout(at, at, prefix_length=len(prefix), sizes=sizes, distinct=distinct)
    more = None if also_at is None else sent(also_at, lease.model.device)

    def alone(row: int) -> Tensor:
        return grow_trunk(lease, prefix, [prompts[row]], room=0, head=False).last.states[0]

    several = alone if len(prompts) > 1 else None
    last = lease.run(tokens, layout, memory, head=head, also_at=more, alone=several)
    # Copies, small beside the prefix in every row of the memory, which can then be let go.
    own = (memory.own(block, at.shape[1]) for block in range(lease.model.blocks))
    pairs = tuple((key.clone(), value.clone()) for key, value in own)
    return Grown(Trunk(prefix, turns, at, pairs), memory, last)


def pad_left(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    """The rows as one tensor [row, column], each ending at the last column."""
    sizes = np.array([len(row) for row in rows])
    width = int(sizes.max())
    table = np.full((len(rows), width), fill, dtype=np.int64)
    # In row order, as the mask is: torch takes five times as long over lists of lists.
    numbers = np.fromiter(chain.from_iterable(rows), np.int64, int(sizes.sum()))
    table[np.arange(width) >= (width - sizes)[:, None]] = numbers
    return sent(table, device)
