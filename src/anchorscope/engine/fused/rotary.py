"""Rotary embedding of queries and keys in one kernel.

A model's attention calls a function of its file by name. Here its forward is copied with another
function under that name, for the one module: the file's own stays as it is for everybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from anchorscope.engine.fused.alike import alike, noise

_NAME = "apply_rotary_pos_emb"
Turn = Callable[..., Any]


def ours(module: nn.Module) -> Turn | None:
    """The attention's forward with the fused rotation; None where it turns in another way."""
    plain = type(module).forward
    if not isinstance(plain, FunctionType) or _NAME not in plain.__code__.co_names:
        return None
    weight = next((p for p in module.parameters() if p.dtype.is_floating_point), None)
    if weight is None or not _halves(plain.__globals__[_NAME], weight):
        return None
    names = {**plain.__globals__, _NAME: _fused(plain.__globals__[_NAME])}
    copy = FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return MethodType(copy, module)


def _fused(own: Turn) -> Turn:
    """The file's function, by our kernel where the whole head turns."""

    def either(
        query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if all(of.shape[0] == 1 and of.shape[-2:] == cos.shape[-2:] for of in (query, key)):
            return rotate(query, key, cos, sin)
        return own(query, key, cos, sin, *args, **kwargs)

    return either


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, head, token, width], turned by the angles [1, token, width]."""
    from anchorscope.engine.fused.kernels import rotated  # Triton comes with torch for GPUs

    return rotated(query, key, cos, sin)


def _halves(own: Turn, like: Tensor) -> bool:
    """Whether the file's function turns the two halves of a head against each other."""
    query, key = noise(like, 1, 3, 5, 8), noise(like, 1, 1, 5, 8)
    return alike(own, rotate, query, key, noise(like, 1, 5, 8), noise(like, 1, 5, 8).neg())
