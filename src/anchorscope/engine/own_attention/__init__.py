"""Attention of the models that do not let theirs be replaced by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from anchorscope.engine.own_attention import in_a_method, in_forward

# By class: the name of what is replaced, and what makes ours for a module.
_OURS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(in_a_method.SCALES, ("_attn", in_a_method.ours)),
    **{name: ("forward", ours) for name, ours in in_forward.OURS.items()},
}


def replace_own(block: nn.Module) -> Callable[[], None]:
    """Puts our attention in the place of a block's own; gives what takes it out again."""
    modules = [m for m in block.modules() if type(m).__name__ in _OURS]
    before: list[tuple[nn.Module, str, Any]] = []
    for module in modules:
        name, ours = _OURS[type(module).__name__]
        before.append((module, name, module.__dict__.get(name)))  # accelerate puts a forward there
        setattr(module, name, ours(module))

    def take_out() -> None:
        for module, name, own in before:
            delattr(module, name)
            if own is not None:
                setattr(module, name, own)

    return take_out
