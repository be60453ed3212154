"""Layout of a forward pass: positions, masks, packing without padding, and key-value caches.

A row of a pass is one question under one intervention. Its keys come in two parts: the prefix,
shared by all rows and held once, and the row's own keys. Every mask is made from token
positions, never from places in a tensor, so padding and cached keys cannot shift it.

Rows of different length go through the model packed, one after the other without padding: its
linear layers, which are nearly all of the arithmetic, work on single tokens. Only attention sees
rows, padded on the left. Tokens whose states must be equal are packed once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface

from anchorscope.engine.transfer import to_device
from anchorscope.errors import UserError

# --- The model's own rule: which keys a query may see ---

# transformers makes the mask of every kind of layer (full, sliding, chunked) from a function of two
# indices. Under our name it passes that function on instead of a tensor, and we call it with token
# positions: indices in a packed pass mean nothing to it.


NAME = "anchorscope"
_OWN_CODE = "its attention is its own code and cannot be replaced by ours"


class UnsupportedModel(UserError):
    """A model whose attention cannot be changed exactly; the message says why."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Which keys a query may see in a kind of layer; rules are compared by identity."""

    function: Callable[[Any, Any, Any, Any], Tensor]  # batch, head, query and key -> allowed

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether positions [row, query] may attend to [row, key], bool [row, query, key]."""
        zero = query.new_zeros(1, 1, 1, 1)
        seen = self.function(zero, zero, query[:, None, :, None], key[:, None, None, :])
        return seen.expand(len(query), -1, query.shape[1], key.shape[1])[:, 0]

    def __getitem__(self, part: Any) -> Rule:
        """Return the rule itself: some models slice their mask to the number of keys."""
        return self

    def to(self, *args: Any, **options: Any) -> Rule:
        """Return the rule itself: accelerate moves a block's inputs to the block's device."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raise UnsupportedModel: code that uses a rule as a tensor has attention of its own."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedModel(_OWN_CODE)

    @classmethod
    def __torch_function__(cls, *given: Any) -> Any:
        raise UnsupportedModel(_OWN_CODE)


def rule_of(*, mask_function: Callable[..., Tensor], use_vmap: bool = False, **sizes: Any) -> Rule:
    """Make a rule where transformers would make a mask; transformers calls this."""
    if use_vmap:
        raise UnsupportedModel("its mask depends on more than token positions")
    return Rule(mask_function)


def require_rule(mask: Any, module: torch.nn.Module) -> Rule:
    """Return a layer's mask if it is a `Rule`; raise UnsupportedModel otherwise."""
    if isinstance(mask, Rule):
        return mask
    own = "a mask tensor of its own" if isinstance(mask, Tensor) else "no mask through transformers"
    raise UnsupportedModel(f"{type(module).__name__} makes {own}, so nothing can be cut from it")


AttentionMaskInterface.register(NAME, rule_of)  # pyright: ignore[reportArgumentType]


def first_position(decoder: nn.Module) -> int:
    """The position id of a row's first token: 0, or more where lower ids mean padding."""
    for module in decoder.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1  # pyright: ignore[reportArgumentType]
    return 0


# --- Distinct tokens of a pack: tokens with equal states go through the blocks once ---

# A token's states follow from itself, its position and the tokens that it sees, directly or through
# others. Questions that begin alike share the states of their beginning, as they share the prefix.
# After a knockout no token sees what is cut, so rows that differ in nothing else share what
# follows: the end of the question, and the answer as far as it is the same.
#
# Tokens get numbers by what they see, each number from those before it, so that equal numbers mean
# equal states. Nothing is hashed: a collision would silently give a wrong state.


class Stretch(NamedTuple):
    """The tokens of one row, and what comes before them."""

    ids: Sequence[int]
    at: Sequence[int]  # their positions
    front: Hashable = ()  # what comes first, such as the prefix: equal where it is the same
    turn: Sequence[int] = ()  # tokens between `front` and the row, which no cut has changed
    turn_at: int = 0  # the position of the first token of `turn`
    cut: Collection[int] = ()  # positions that no later token outside them sees


def distinct_tokens(rows: Iterable[Stretch]) -> np.ndarray | None:
    """Number tokens so that equal numbers mean equal states, [token]; None: all are distinct."""
    table: dict[Hashable, int] = {}
    numbers = np.array([number for row in rows for number in _numbers(row, table)], dtype=np.int64)
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    if len(first) == len(numbers):
        return None
    # In the order in which they come first, so that a pack has the order of its rows.
    return np.argsort(np.argsort(first))[inverse]


def _number(table: dict[Hashable, int], *parts: Hashable) -> int:
    """The number of a combination of parts; equal combinations have equal numbers."""
    return table.setdefault(parts, len(table))


def _numbers(row: Stretch, table: dict[Hashable, int]) -> list[int]:
    """Number the tokens of a row by what they see.

    `whole` is the number of all tokens before the next one, `open` of the uncut tokens before it: a
    token inside the cut sees the former, any other token the latter.
    """
    whole = open = _number(table, row.front)
    for position, token in enumerate(row.turn, start=row.turn_at):
        before, whole = whole, _number(table, whole, position, token)
        if position not in row.cut:
            open = whole if open == before else _number(table, open, whole)
    numbers = []
    for position, token in zip(row.at, row.ids, strict=True):
        inside = position in row.cut
        own = _number(table, whole if inside else open, position, token)
        whole = own if inside or whole == open else _number(table, whole, own)
        open = open if inside else own
        numbers.append(own)
    return numbers


# --- The layout of a pass ---


PAD = -1  # the position of a padding token


@dataclass(frozen=True)
class Edges:
    """The attention edges that an intervention removes or reweights, row by row."""

    blocked: Tensor  # bool [row, query, key]; keys: those of the prefix, then the row's own
    blocks: Tensor  # bool [row, block]: the blocks in which they are removed
    heads: Tensor | None = None  # bool [row, block, head]: the heads; None is all of them
    post: Tensor | None = None  # bool [row]: weight set to 0 after the softmax; None is no row
    alike: bool = False  # every block cuts the same edges, so one mask serves them all
    added: Tensor | None = None  # [row]: added to their scores, -inf removes them; None is -inf

    def gone(self, block: int, *, post: bool) -> Tensor:
        """The edges that change in a block, after the softmax or before it.

        bool [row, 1 or head, query, key].
        """
        active = self.blocks[:, block]
        if self.post is not None:
            active = active & (self.post if post else ~self.post)
        gone = (self.blocked & active[:, None, None])[:, None]
        return gone if self.heads is None else gone & self.heads[:, block, :, None, None]


@dataclass(frozen=True)
class Layout:
    """Token positions of one pass, and the attention edges between them.

    `query_at` [row, query] and `key_at` [row, own key] are positions in prompt + answer,
    PAD for padding. The prefix holds the positions 0..prefix_length-1.
    """

    query_at: Tensor
    key_at: Tensor
    prefix_length: int
    sees_prefix: Tensor | None = None  # bool [row]; None is all of them
    edges: Edges | None = None
    # How many tokens each row has; None: counted here, which waits for the GPU.
    sizes: Sequence[int] | None = field(default=None, repr=False)
    # The number of each token among the distinct ones, row after row; only distinct tokens are
    # packed. None: all tokens are distinct.
    distinct: np.ndarray | None = field(default=None, repr=False)
    _made: dict[object, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def place(self) -> Tensor:
        """Indices of the packed tokens in the flattened, left-padded rows, [token]."""
        width, device = self.query_at.shape[1], self.query_at.device
        if self.sizes is None:
            place = (self.query_at.flatten() >= 0).nonzero()[:, 0]
        elif min(self.sizes, default=width) == width:
            place = torch.arange(self.query_at.numel(), device=device)
        else:
            there = np.arange(width) >= width - np.asarray(self.sizes)[:, None]
            place = to_device(there.ravel().nonzero()[0], device)
        if self.distinct is None:
            return place
        return place[to_device(np.unique(self.distinct, return_index=True)[1], device)]

    def _packed(self, token: Tensor) -> Tensor:
        """Map indices among all tokens to indices among the packed, distinct tokens."""
        if self.distinct is None:
            return token
        return to_device(self.distinct, self.query_at.device)[token]

    @property
    def keys(self) -> int:
        """The number of keys of a row, padding included."""
        return self.prefix_length + self.key_at.shape[1]

    @cached_property
    def full(self) -> bool:
        """Whether no row has padding, and all tokens are distinct."""
        return len(self.place) == self.query_at.numel()

    def pack(self, rows: Tensor) -> Tensor:
        """Pack padded rows [row, query, ...] into one sequence [1, token, ...], without padding.

        Of tokens with equal states only the first is packed.
        """
        flat = rows.flatten(0, 1)
        return flat[None] if self.full else flat.index_select(0, self.place.to(flat.device))[None]

    def in_rows(self, packed: Tensor) -> Tensor:
        """Unpack [1, head, token, head width] into rows [row, head, query, head width].

        Padding repeats its row's first token; nothing attends to it.
        """
        if self.full and self.query_at.shape[1] == 1:  # a token a row: a step of decoding
            return packed.transpose(0, 2)
        flat = packed.transpose(1, 2)[0]
        flat = flat if self.full else flat.index_select(0, self._spread.to(flat.device))
        return flat.unflatten(0, self.query_at.shape).transpose(1, 2)

    @cached_property
    def _spread(self) -> Tensor:
        """Index of the packed token at each entry of the flattened rows, [row · query]."""
        there = (self.query_at >= 0).flatten().long()
        # As many tokens come before a row's first one as before the padding in front of it.
        return self._packed(there.cumsum(dim=0) - there)

    @cached_property
    def rows(self) -> Tensor:
        """The numbers of the rows, [row]."""
        return torch.arange(len(self.query_at), device=self.query_at.device)

    @cached_property
    def counts(self) -> Tensor:
        """How many tokens each row has, [row]."""
        return (self.query_at >= 0).sum(dim=1)

    @cached_property
    def starts(self) -> Tensor:
        """The index of each row's first token among all tokens of the rows, [row]."""
        return self.counts.cumsum(dim=0) - self.counts

    def last(self) -> Tensor:
        """The index of each row's last token among the packed ones, [row]."""
        return self.token_at(self.query_at[:, -1])

    def token_at(self, at: Tensor) -> Tensor:
        """Index among the packed tokens of the token at one position of each row, [row]."""
        # A row's queries follow one another without a gap, up to its last column.
        return self.token_back(self.rows, self.query_at[:, -1] - at)

    def token_back(self, rows: Tensor, back: Tensor) -> Tensor:
        """Index among the packed tokens of the token `back` before its row's last, [entry]."""
        return self._packed((self.starts + self.counts - 1)[rows] - back)

    def allowed(self, rule: Rule) -> Tensor:
        """Whether query may attend to key without any intervention, bool [row, query, key]."""
        shared = torch.arange(self.prefix_length, device=self.key_at.device)
        key = torch.cat([shared.expand(len(self.key_at), -1), self.key_at], dim=1)
        there = key >= 0
        if self.sees_prefix is not None:
            there[:, : self.prefix_length] = self.sees_prefix[:, None]
        # Called with real positions only: a rule may look them up in a table.
        seen = rule.allows(self.query_at.clamp(min=0), key.clamp(min=0)) & there[:, None, :]
        # A padding query sees the padding keys only: a row that sees nothing would be NaN.
        return torch.where(self.query_at[:, :, None] < 0, key[:, None, :] < 0, seen)

    def bias(self, block: int, rule: Rule, dtype: torch.dtype) -> Tensor:
        """Bias added to a block's scores, [row, 1 or head, query, key]: 0, -inf or the boost."""

        def make() -> Tensor:
            allowed, edges = self.allowed(rule)[:, None], self.edges
            added = torch.zeros((), dtype=dtype, device=allowed.device)
            if edges is not None and edges.added is None:
                allowed = allowed & ~edges.gone(block, post=False)
            elif edges is not None and edges.added is not None:
                boost = edges.added[:, None, None, None]
                added = torch.where(edges.gone(block, post=False), boost, 0.0).to(dtype)
            return torch.where(allowed, added, -torch.inf)

        return self._once("bias", block, rule, make)

    def open_prefix(self, block: int, rule: Rule, dtype: torch.dtype) -> Tensor:
        """Whether a row's bias is 0 on the whole prefix, bool [row]."""

        def make() -> Tensor:
            bias = self.bias(block, rule, dtype)[..., : self.prefix_length]
            padding = (self.query_at < 0)[:, None, :, None]  # sees the padding alone
            return ((bias == 0) | padding).flatten(1).all(dim=1)

        return self._once("open prefix", block, rule, make)

    def kept(self, block: int, dtype: torch.dtype) -> Tensor | None:
        """Factor on attention weights after the softmax: 0 on edges cut `post`, else 1."""
        edges = self.edges
        if edges is None or edges.post is None:
            return None
        return (~edges.gone(block, post=True)).to(dtype)

    def _once(self, what: str, block: int, rule: Rule, make: Callable[[], Tensor]) -> Tensor:
        """Cache a mask: one for all blocks where they cut the same edges, else one per block."""
        alike = self.edges is None or self.edges.alike
        name = (what, rule, None if alike else block)
        if name not in self._made:
            if len(self._made) > 8:  # blocks that differ come in turn, each once
                self._made.clear()
            self._made[name] = make()
        return self._made[name]


# --- Key-value caches: grown while decoding, or forked from a trunk ---

# The prefix, computed once, is copied into every row's buffer in front of its own keys: a copy the
# size of the prefix, once a batch. On a GPU a kernel reads it in place (`attend_segments` in
# `kernels.py`); joining it in every step took a quarter of a decoding pass there.


Pair = tuple[Tensor, Tensor]  # keys and values, [row, key head, position, head width]


class Segments(NamedTuple):
    """The keys and values of a pass in up to three places, for a kernel that reads them there."""

    front: Pair | None  # the prefix, [1, key head, position, head width]
    middle: Pair  # [row or question, key head, position, head width]
    rows: Tensor  # which of `middle` each row has, [row]
    own: Pair | None  # the rows' own, packed: [1, token, key head, head width]


class GrowingCache:
    """A key-value cache in buffers of fixed capacity, so that a step copies no earlier keys.

    `segmented`: the prefix stays in its own place, for a kernel that reads it there.
    """

    def __init__(
        self,
        blocks: int,
        capacity: int,
        prefix: Sequence[Pair] | None = None,
        *,
        segmented: bool = False,
    ) -> None:
        self.segmented, self._prefix, self._capacity = segmented, prefix, capacity
        self._front = 0 if segmented or prefix is None else prefix[0][0].shape[2]
        self._pairs: list[Pair | None] = [None] * blocks
        self._length = [self._front] * blocks

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """All keys and values of a block so far, [row, key head, prefix + length, head width]."""
        key, value = self._grow(block, key, value)
        if not self.segmented or self._prefix is None:
            return key, value
        front = [part.expand(len(key), -1, -1, -1) for part in self._prefix[block]]
        return torch.cat([front[0], key], dim=2), torch.cat([front[1], value], dim=2)

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """A block's keys and values in segments; new ones are [1, key head, token, head width]."""
        pair = self._grow(block, layout.in_rows(key), layout.in_rows(value))
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, pair, layout.rows, own=None)

    def _grow(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """Append new keys and values to a block's buffers; returns all that they hold."""
        pair, start = self._pairs[block], self._length[block]
        if pair is None:
            room = self._front + self._capacity
            empty = [x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (key, value)]
            pair = empty[0], empty[1]
            if self._front and self._prefix is not None:
                for buffer, front in zip(pair, self._prefix[block], strict=True):
                    buffer[:, :, : self._front] = front
            self._pairs[block] = pair
        stop = self._length[block] = start + key.shape[2]
        pair[0][:, :, start:stop], pair[1][:, :, start:stop] = key, value
        return pair[0][:, :, :stop], pair[1][:, :, :stop]

    def own(self, length: int) -> tuple[Pair, ...]:
        """Copies of each block's first `length` keys and values after the prefix."""
        start, stop = self._front, self._front + length
        pairs = [pair for pair in self._pairs if pair is not None]
        return tuple((k[:, :, start:stop].clone(), v[:, :, start:stop].clone()) for k, v in pairs)

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these, block by block: two whole copies are never held."""
        for block, pair in enumerate(self._pairs):
            if pair is not None:
                self._pairs[block] = (_select(pair[0], index), _select(pair[1], index))


class ForkedCache:
    """A key-value cache for rows forked from a trunk, which they leave unchanged."""

    def __init__(
        self,
        trunk: Sequence[Pair],
        rows: Tensor,
        prefix: Sequence[Pair] | None = None,
        *,
        segmented: bool = False,
    ) -> None:
        self.segmented, self._trunk, self._rows, self._prefix = segmented, trunk, rows, prefix

    def join(self, block: int, key: Tensor, value: Tensor) -> Pair:
        """Join the prefix, the trunk's keys and values of each row, and the new ones."""
        joined = []
        for n, own in enumerate((key, value)):
            parts = [_select(self._trunk[block][n], self._rows), own]
            if self._prefix is not None:
                parts.insert(0, self._prefix[block][n].expand(len(own), -1, -1, -1))
            joined.append(torch.cat(parts, dim=2))
        return joined[0], joined[1]

    def segments(self, block: int, layout: Layout, key: Tensor, value: Tensor) -> Segments:
        """A block's keys and values in segments; new ones are [1, key head, token, head width]."""
        own = key.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()
        front = None if self._prefix is None else self._prefix[block]
        return Segments(front, self._trunk[block], self._rows, own)


KVCache = GrowingCache | ForkedCache


def _select(pairs: Tensor, rows: Tensor) -> Tensor:
    """Select rows of a tensor, which may be on another device than the row numbers."""
    return pairs.index_select(0, rows.to(pairs.device))  # a third of the time of pairs[rows]
