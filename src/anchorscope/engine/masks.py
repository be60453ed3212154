"""Which keys a query may see by the model's own rule, taken from transformers and not guessed.

transformers makes the mask of every kind of layer (full, sliding, chunked) from a function of two
indices. Under our name it hands that function over instead of a tensor, and we ask it about token
positions: places in a packed pass mean nothing to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface

from anchorscope.errors import UserError

NAME = "anchorscope"


class NotUnderstood(UserError):
    """A model whose attention cannot be changed exactly; the message says why."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Who may attend to whom in one kind of layer; two rules are the same only if one object."""

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
        """An error: whoever takes a rule for a tensor computes its attention by itself."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotUnderstood("its attention is its own code and cannot be replaced by ours")

    def __radd__(self, other: Any) -> Any:
        return self.added


def rule_of(*, mask_function: Callable[..., Tensor], use_vmap: bool = False, **sizes: Any) -> Rule:
    """What transformers calls in place of making a mask."""
    if use_vmap:
        raise NotUnderstood("its mask depends on more than token positions")
    return Rule(mask_function)


def checked(mask: Any, module: torch.nn.Module) -> Rule:
    """The rule that a layer was given; an error where it is something else."""
    if isinstance(mask, Rule):
        return mask
    own = "a mask tensor of its own" if isinstance(mask, Tensor) else "no mask through transformers"
    raise NotUnderstood(f"{type(module).__name__} makes {own}, so nothing can be cut from it")


AttentionMaskInterface.register(NAME, rule_of)  # pyright: ignore[reportArgumentType]


def first_position(decoder: nn.Module) -> int:
    """The position of a row's first token: 0, but where those before it mean padding."""
    for module in decoder.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1  # pyright: ignore[reportArgumentType]
    return 0
