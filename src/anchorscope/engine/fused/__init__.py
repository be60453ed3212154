"""Norms, gates and rotary embeddings in one kernel each, on a GPU.

Between its matrix products a block's own code passes over memory many times: 30 % of the time of
an 8B model (docs/performance.md). What stands in for it was tried against it first, on random
input of the model's own dtype, and is left out where they differ by more than rounding. With
gradients the own code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from anchorscope.engine.fused import gates, norms, rotary, trial
from anchorscope.models import Model

_GPU = "cuda"  # tests set another value
# Each gives a module's new forward, or None where the module is of another kind.
_KINDS: tuple[Callable[[nn.Module], Any], ...] = (norms.ours, gates.ours, rotary.ours)


def can_fuse(model: Model) -> bool:
    """Whether the kernels can run: a whole model on one GPU, with Triton, and they work."""
    devices = {weight.device for weight in model.lm.parameters()}
    whole = devices == {model.device}
    if not whole or model.device.type != _GPU or find_spec("triton") is None:
        return False
    return _tried(model.device, model.dtype, *_shape(model.lm.config.get_text_config()))


def _shape(config: Any) -> tuple[int, int, int]:
    """Heads, key heads and their width."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, width


@cache
def _tried(
    device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, width: int
) -> bool:
    """Whether these kernels give what torch gives, tried once for a shape of heads."""
    like = torch.zeros((), dtype=dtype, device=device)
    attends = heads % key_heads == 0 and trial.works(like, heads, key_heads, width)
    return attends and trial.chooses(like)


@torch.no_grad()
def put_into(lm: nn.Module) -> Callable[[], None]:
    """Puts fused forwards into every module that has one; gives what takes them out again."""
    known = _KNOWN.setdefault(lm, {})
    ours = {module: _known(known, module) for module in lm.modules() if module is not lm}
    new = {module: forward for module, forward in ours.items() if forward is not None}
    for module, forward in new.items():
        module.forward = forward

    def take_out() -> None:
        for module in new:
            del module.forward

    return take_out


# What was tried once is not tried again: a model is lent many times. By model, since a forward
# holds its module, and would keep it on the GPU for ever under the module's own name.
_Tried = tuple[Any, Callable[..., Any] | None]
_KNOWN: WeakKeyDictionary[nn.Module, dict[nn.Module, _Tried]] = WeakKeyDictionary()


def _known(known: dict[nn.Module, _Tried], module: nn.Module) -> Callable[..., Any] | None:
    """The fused forward of a module, tried anew where the module's dtype or place changed."""
    weight = next(module.parameters(recurse=False), None)
    kind = None if weight is None else (weight.dtype, weight.device)
    kind = (kind, "forward" in module.__dict__)
    if module not in known or known[module][0] != kind:
        known[module] = kind, _of(module)
    return known[module][1]


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
