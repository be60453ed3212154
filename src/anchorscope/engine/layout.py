"""Positions of one pass, who may attend to whom, and which tokens go through the model.

A row of a pass is one question under one intervention. Its keys come in two parts: the prefix,
shared by all rows and held once, and the row's own keys. Every mask is made from token
positions, never from places in a tensor, so padding and cached keys cannot shift it.

Rows of different length go through the model packed, one after the other without padding: its
linear layers, which are nearly all of the arithmetic, look at single tokens. Only attention sees
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

# Taken from transformers and not guessed. It makes the mask of every kind of layer (full, sliding,
# chunked) from a function of two indices. Under our name it hands that function over instead of a
# tensor, and we ask it about token positions: places in a packed pass mean nothing to it.


NAME = "anchorscope"
_OWN_CODE = "its attention is its own code and cannot be replaced by ours"


class UnsupportedModel(UserError):
    """A model whose attention cannot be changed exactly; the message says why."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Which keys a query may see in a kind of layer; two rules are equal only as one object."""

    function: Callable[[Any, Any, Any, Any], Tensor]  # batch, head, query and key -> allowed

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether positions [row, query] may attend to [row, key], bool [row, query, key]."""
        zero = query.new_zeros(1, 1, 1, 1)
        seen = self.function(zero, zero, query[:, None, :, None], key[:, None, None, :])
        return seen.expand(len(query), -1, query.shape[1], key.shape[1])[:, 0]

    def __getitem__(self, part: Any) -> Rule:
        """The same rule: a model that trims its mask to the length of its keys means this one."""
        return self

    def to(self, *args: Any, **options: Any) -> Rule:
        """The same rule: accelerate sends what a block is given to the block's device."""
        return self

    def __getattr__(self, name: str) -> Any:
        """An error: code that takes a rule for a tensor computes its attention by itself."""
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
    """The rule that a layer was given; an error where it is something else."""
    if isinstance(mask, Rule):
        return mask
    own = "a mask tensor of its own" if isinstance(mask, Tensor) else "no mask through transformers"
    raise UnsupportedModel(f"{type(module).__name__} makes {own}, so nothing can be cut from it")


AttentionMaskInterface.register(NAME, rule_of)  # pyright: ignore[reportArgumentType]


def first_position(decoder: nn.Module) -> int:
    """The position of a row's first token: 0, but where those before it mean padding."""
    for module in decoder.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1  # pyright: ignore[reportArgumentType]
    return 0


# --- Which tokens of a pack are distinct: those that are not go through the blocks once ---

# A token's states follow from itself, its position and the tokens that it sees, directly or by way
# of others. Questions that begin alike share those of their beginning, as they share the prefix.
# And behind a knockout no token sees what is cut, so rows that differ in nothing else share what
# follows: the end of the question, and the answer as far as it is the same.
#
# Tokens get numbers by what they see, each number from those before it, so that equal numbers mean
# equal states. Nothing is hashed: a collision would be a wrong state without a sign.


class Stretch(NamedTuple):
    """The tokens of one row, and what comes before them."""

    ids: Sequence[int]
    at: Sequence[int]  # their positions
    front: Hashable = ()  # what comes first, such as the prefix: equal where it is the same
    turn: Sequence[int] = ()  # tokens between that and the row, which no cut has changed
    turn_at: int = 0  # the position of the first of them
    cut: Collection[int] = ()  # positions that no later token outside them sees


def distinct_tokens(rows: Iterable[Stretch]) -> np.ndarray | None:
    """The number of each packed token's states [token]; None where all tokens are distinct."""
    table: dict[Hashable, int] = {}
    numbers = np.array([number for row in rows for number in _numbers(row, table)], dtype=np.int64)
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    if len(first) == len(numbers):
        return None
    # In the order in which they come first, so that a pack has the order of its rows.
    return np.argsort(np.argsort(first))[inverse]


def _number(table: dict[Hashable, int], *parts: Hashable) -> int:
    """A number for a combination of parts, the same when it comes again."""
    return table.setdefault(parts, len(table))


def _numbers(row: Stretch, table: dict[Hashable, int]) -> list[int]:
    """Number the tokens of a row.

    `whole` is the number of all tokens before the next one, `open` of those that are not cut: a
    token inside the cut sees the former, any other the latter.
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
    """The attention edges an intervention takes away or reweights, row by row."""

    blocked: Tensor  # bool [row, query, key]; keys: those of the prefix, then the row's own
    blocks: Tensor  # bool [row, block]: the blocks in which they are taken away
    heads: Tensor | None = None  # bool [row, block, head]: the heads; None is all of them
    post: Tensor | None = None  # bool [row]: weight set to 0 after the softmax; None is no row
    alike: bool = False  # every block cuts the same edges, so one mask serves them all
    added: Tensor | None = None  # [row]: to their scores, -inf takes them away; None is -inf

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
    """The positions of one pass and what its rows may see.

    `query_at` [row, query] and `key_at` [row, own key] are positions in prompt + answer,
    PAD for padding. The prefix holds the positions 0..prefix_length-1.
    """

    query_at: Tensor
    key_at: Tensor
    prefix_length: int
    sees_prefix: Tensor | None = None  # bool [row]; None is all of them
    edges: Edges | None = None
    # How many tokens each row has; None: counted here, for which a GPU ends its work first.
    sizes: Sequence[int] | None = field(default=None, repr=False)
    # The number of each row's tokens among the distinct ones, which alone are packed, one row
    # after the other; None: all tokens are.
    distinct: np.ndarray | None = field(default=None, repr=False)
    _made: dict[object, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def place(self) -> Tensor:
        """The places of the packed tokens in the rows, which are padded on the left, [token]."""
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
        """The numbers of tokens among the packed ones, from their numbers among all."""
        if self.distinct is None:
            return token
        return to_device(self.distinct, self.query_at.device)[token]

    @property
    def keys(self) -> int:
        """How many keys a row has at most, with padding."""
        return self.prefix_length + self.key_at.shape[1]

    @cached_property
    def full(self) -> bool:
        """Whether no row has padding, and all tokens are distinct."""
        return len(self.place) == self.query_at.numel()

    def pack(self, rows: Tensor) -> Tensor:
        """Pack padded rows [row, query, ...] into one sequence [1, token, ...], without padding.

        Of tokens that are not distinct the first one counts.
        """
        flat = rows.flatten(0, 1)
        return flat[None] if self.full else flat.index_select(0, self.place.to(flat.device))[None]

    def in_rows(self, packed: Tensor) -> Tensor:
        """Unpack [1, head, token, head width] into rows [row, head, query, head width].

        Padding has what its row's first token has: nothing sees it.
        """
        if self.full and self.query_at.shape[1] == 1:  # a token a row: a step of decoding
            return packed.transpose(0, 2)
        flat = packed.transpose(1, 2)[0]
        flat = flat if self.full else flat.index_select(0, self._spread.to(flat.device))
        return flat.unflatten(0, self.query_at.shape).transpose(1, 2)

    @cached_property
    def _spread(self) -> Tensor:
        """Which packed token each place in the rows has, [row and query]."""
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
        """The index of the token at a position of each row [row] among the packed ones, [row]."""
        # A row's queries follow one another without a gap, up to its last column.
        return self.token_back(self.rows, self.query_at[:, -1] - at)

    def token_back(self, rows: Tensor, back: Tensor) -> Tensor:
        """The index among the packed of the token `back` before the last of each row, [entry]."""
        return self._packed((self.starts + self.counts - 1)[rows] - back)

    def allowed(self, rule: Rule) -> Tensor:
        """Whether query may attend to key without any intervention, bool [row, query, key]."""
        shared = torch.arange(self.prefix_length, device=self.key_at.device)
        key = torch.cat([shared.expand(len(self.key_at), -1), self.key_at], dim=1)
        there = key >= 0
        if self.sees_prefix is not None:
            there[:, : self.prefix_length] = self.sees_prefix[:, None]
        # Asked about real positions alone: a rule may look them up in a table.
        seen = rule.allows(self.query_at.clamp(min=0), key.clamp(min=0)) & there[:, None, :]
        # A padding query sees the padding keys only: a row that sees nothing would be NaN.
        return torch.where(self.query_at[:, :, None] < 0, key[:, None, :] < 0, seen)

    def bias(self, block: int, rule: Rule, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of a block, [row, 1 or head, query, key]: 0, -inf, boost."""

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
        """Whether nothing is added to any of a row's scores for the prefix, bool [row]."""

        def make() -> Tensor:
            bias = self.bias(block, rule, dtype)[..., : self.prefix_length]
            padding = (self.query_at < 0)[:, None, :, None]  # sees the padding alone
            return ((bias == 0) | padding).flatten(1).all(dim=1)

        return self._once("open prefix", block, rule, make)

    def kept(self, block: int, dtype: torch.dtype) -> Tensor | None:
        """What multiplies the weights after the softmax: 0 on edges cut `post`, else 1."""
        edges = self.edges
        if edges is None or edges.post is None:
            return None
        return (~edges.gone(block, post=True)).to(dtype)

    def _once(self, what: str, block: int, rule: Rule, make: Callable[[], Tensor]) -> Tensor:
        """A mask made once and kept: for every block, or until the next block asks for its own."""
        alike = self.edges is None or self.edges.alike
        name = (what, rule, None if alike else block)
        if name not in self._made:
            if len(self._made) > 8:  # blocks that differ come in turn and never again
                self._made.clear()
            self._made[name] = make()
        return self._made[name]
