"""Who may attend to whom in one pass: positions, blocked edges, and the bias they amount to.

A row of a pass is one question under one intervention. Its keys come in two parts: the prefix,
shared by all rows and held once, and the row's own keys. Every mask is made from token
positions, never from places in a tensor, so padding and cached keys cannot shift it.

Rows of different length go through the model packed, one after the other without padding: its
linear layers, which are nearly all of the arithmetic, look at single tokens. Only attention sees
rows, padded on the left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.masks import Rule
from anchorscope.engine.transfer import sent

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
    place: Tensor = field(init=False, repr=False)  # [token]: where packed tokens stand in the rows
    _among: Tensor | None = field(init=False, repr=False)  # `distinct`, where the pass is
    home: Layout | None = field(default=None, repr=False)  # the one this is a copy of, if it is one
    _made: dict[object, Tensor] = field(default_factory=dict, repr=False)
    _copies: dict[torch.device, Layout] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # Fixed here once: finding it again in every block would make a GPU wait.
        among = None if self.distinct is None else sent(self.distinct, self.query_at.device)
        if self.home is not None:
            place = self.home.place.to(self.query_at.device)
        else:
            place = self._counted() if self.sizes is None else self._known(self.sizes)
            if self.distinct is not None:
                first = np.unique(self.distinct, return_index=True)[1]
                place = place[sent(first, place.device)]
        object.__setattr__(self, "place", place)
        object.__setattr__(self, "_among", among)

    def _counted(self) -> Tensor:
        return (self.query_at.flatten() >= 0).nonzero()[:, 0]

    def _known(self, sizes: Sequence[int]) -> Tensor:
        """The same from what is known of the rows, which are padded on the left."""
        width = self.query_at.shape[1]
        if min(sizes, default=width) == width:
            return torch.arange(self.query_at.numel(), device=self.query_at.device)
        there = np.arange(width) >= width - np.asarray(sizes)[:, None]
        return sent(there.ravel().nonzero()[0], self.query_at.device)

    @property
    def keys(self) -> int:
        """How many keys a row has at most, with padding."""
        return self.prefix_length + self.key_at.shape[1]

    @cached_property
    def full(self) -> bool:
        """Whether no row has padding, and all tokens are distinct."""
        return len(self.place) == self.query_at.numel()

    def on(self, device: torch.device) -> Layout:
        """The same layout for the blocks of a device; masks are made at home and copied there."""
        if device == self.place.device:
            return self
        if device not in self._copies:
            at = {"query_at": self.query_at.to(device), "key_at": self.key_at.to(device)}
            self._copies[device] = replace(self, **at, home=self, _made={}, _copies={})
        return self._copies[device]

    def pack(self, rows: Tensor) -> Tensor:
        """Things [row, query, ...] one after the other, [1, token, ...], without the padding.

        Of tokens that are not distinct the first one counts.
        """
        flat = rows.flatten(0, 1)
        return flat[None] if self.full else flat.index_select(0, self.place)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Packed things [1, token, ...] back in their rows, [row, query, ...].

        Padding has what its row's first token has: nobody sees it.
        """
        flat = packed[0] if self.full else packed[0].index_select(0, self._spread)
        return flat.unflatten(0, self.query_at.shape)

    @cached_property
    def _spread(self) -> Tensor:
        """Which packed token each place in the rows has, [row and query]."""
        if self.home is not None:
            return self.home._spread.to(self.place.device)
        there = (self.query_at >= 0).flatten().long()
        # As many tokens stand before a row's first one as before the padding in front of it.
        token = there.cumsum(dim=0) - there
        return token if self._among is None else self._among[token]

    def in_rows(self, packed: Tensor) -> Tensor:
        """Packed [1, head, token, head width] in their rows, [row, head, query, head width]."""
        if self.full and self.query_at.shape[1] == 1:  # a token a row: a step of decoding
            return packed.transpose(0, 2)
        return self.unpack(packed.transpose(1, 2)).transpose(1, 2)

    @cached_property
    def rows(self) -> Tensor:
        """The numbers of the rows, [row]."""
        return torch.arange(len(self.query_at), device=self.place.device)

    @cached_property
    def counts(self) -> Tensor:
        """How many tokens each row has, [row]."""
        return (self.query_at >= 0).sum(dim=1)

    @cached_property
    def starts(self) -> Tensor:
        """Where each row's first token stands among all tokens of the rows, [row]."""
        return self.counts.cumsum(dim=0) - self.counts

    def last(self) -> Tensor:
        """Where each row's last token stands among the packed ones, [row]."""
        return self.token_at(self.query_at[:, -1])

    def token_at(self, at: Tensor) -> Tensor:
        """Where the token at a position of each row [row] stands among the packed ones, [row]."""
        # A row's queries follow one another without a gap, up to its last column.
        return self.token_back(self.rows, self.query_at[:, -1] - at)

    def token_back(self, rows: Tensor, back: Tensor) -> Tensor:
        """Where the token so many before the last of each of these rows is packed, [entry]."""
        token = (self.starts + self.counts - 1)[rows] - back
        return token if self._among is None else self._among[token]

    def allowed(self, rule: Rule) -> Tensor:
        """Whether query may attend to key without any intervention, bool [row, query, key]."""
        key = self._all_keys_at()
        there = key >= 0
        if self.sees_prefix is not None:
            there[:, : self.prefix_length] = self.sees_prefix[:, None]
        # Asked about real positions alone: a rule may look them up in a table.
        seen = rule.allows(self.query_at.clamp(min=0), key.clamp(min=0)) & there[:, None, :]
        # A padding query sees the padding keys only: a row that sees nothing would be NaN.
        return torch.where(self.query_at[:, :, None] < 0, key[:, None, :] < 0, seen)

    def by_key(self, table: Tensor) -> Tensor:
        """What a table [head, position] says of every key, [row, head, 1, key]."""
        return table[:, self._all_keys_at().clamp(min=0)].transpose(0, 1)[:, :, None]

    def _all_keys_at(self) -> Tensor:
        """The positions of the prefix and of each row's own keys, [row, key], PAD for padding."""
        shared = torch.arange(self.prefix_length, device=self.key_at.device)
        return torch.cat([shared.expand(len(self.key_at), -1), self.key_at], dim=1)

    def bias(self, block: int, rule: Rule, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of a block, [row, 1 or head, query, key]: 0, -inf, boost."""
        edges, home = self.edges, self.home
        name = self._name(block, rule)
        if home is not None:
            return self._once(name, lambda: home.bias(block, rule, dtype).to(self.place.device))
        if edges is None:
            return self._once(name, lambda: _additive(self.allowed(rule), dtype))
        return self._once(name, lambda: self._cut(block, rule, dtype))

    def open_prefix(self, block: int, rule: Rule, dtype: torch.dtype) -> Tensor:
        """Whether nothing is added to any of a row's scores for the prefix, bool [row, 1]."""

        def made() -> Tensor:
            bias = self.bias(block, rule, dtype)[..., : self.prefix_length]
            padding = (self.query_at < 0)[:, None, :, None]  # sees the padding alone
            return ((bias == 0) | padding).flatten(1).all(dim=1)

        return self._once(("open", *self._name(block, rule)), made)

    def _name(self, block: int, rule: Rule) -> tuple:
        """Of what is made for a block, the same for blocks that are alike."""
        edges = self.edges
        return ("clean", rule) if edges is None else ("cut", rule, None if edges.alike else block)

    def kept(self, block: int, dtype: torch.dtype) -> Tensor | None:
        """What multiplies the weights after the softmax: 0 on edges cut `post`, else 1."""
        edges = self.edges
        if edges is None or edges.post is None:
            return None
        if self.home is not None:
            there = self.home.kept(block, dtype)
            return None if there is None else there.to(self.place.device)
        return (~_gone(edges, block, edges.post)).to(dtype)

    def _cut(self, block: int, rule: Rule, dtype: torch.dtype) -> Tensor:
        assert self.edges is not None
        pre = None if self.edges.post is None else ~self.edges.post
        gone = _gone(self.edges, block, pre)
        allowed = self.allowed(rule)[:, None]
        if self.edges.added is None:
            return _additive(allowed & ~gone, dtype)
        added = torch.where(gone, self.edges.added[:, None, None, None], 0.0).to(dtype)
        return _additive(allowed, dtype) + added

    def _once(self, name: tuple, make: Callable[[], Tensor]) -> Tensor:
        """A mask made once and kept: for every block, or until the next block asks for its own."""
        if name not in self._made:
            if len(self._made) > 8:  # blocks that differ are asked for in turn and never again
                self._made.clear()
            made = make()
            self._made[name] = made if made.dim() == 4 else made[:, None]
        return self._made[name]


def _gone(edges: Edges, block: int, rows: Tensor | None) -> Tensor:
    """The edges that these rows lose in a block, [row, 1 or head, query, key]."""
    active = edges.blocks[:, block] if rows is None else edges.blocks[:, block] & rows
    gone = (edges.blocked & active[:, None, None])[:, None]
    if edges.heads is None:
        return gone
    return gone & edges.heads[:, block, :, None, None]


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=allowed.device)
    return torch.where(allowed, zero, torch.full_like(zero, -torch.inf))
