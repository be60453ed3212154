"""Norms, gates and rotary embeddings in one kernel each, on a GPU.

Between its matrix products a block's own code passes over memory many times: 30 % of the time of
an 8B model (docs/performance.md). What stands in for it was tried against it first, on random
input of the model's own dtype, and is left out where they differ by more than rounding. With
gradients the own code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from anchorscope import ranks
from anchorscope.engine.fused import gates, norms, rotary
from anchorscope.models import Model

# Each gives a module's new forward, or None where the module is of another kind.
_KINDS: tuple[Callable[[nn.Module], Any], ...] = (norms.ours, gates.ours, rotary.ours)


def fuse(model: Model) -> Callable[[], None]:
    """Puts the fused forwards into a model on a GPU; gives what takes them out again."""
    if model.device.type != "cuda" or ranks.count() > 1 or find_spec("triton") is None:
        return lambda: None
    return put_into(model.lm)


@torch.no_grad()
def put_into(lm: nn.Module) -> Callable[[], None]:
    """Puts fused forwards into every module that has one; gives what takes them out again."""
    ours = {module: _of(module) for module in lm.modules()}
    new = {module: forward for module, forward in ours.items() if forward is not None}
    for module, forward in new.items():
        module.forward = forward

    def take_out() -> None:
        for module in new:
            del module.forward

    return take_out


def _of(module: nn.Module) -> Callable[..., Any] | None:
    """The fused forward of a module, with its own for gradients; None where it has none."""
    if "forward" in module.__dict__:  # accelerate's, which fetches weights from elsewhere
        return None
    forward = next((found for kind in _KINDS if (found := kind(module)) is not None), None)
    if forward is None:
        return None
    own = module.forward

    def either(*args: Any, **kwargs: Any) -> Any:
        return (own if torch.is_grad_enabled() else forward)(*args, **kwargs)

    return either
