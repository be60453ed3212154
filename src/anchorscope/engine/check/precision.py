"""The same weights in float32 for a while, where half precision rounds too much to tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anchorscope.engine.limits.bounds import note, noted_of
from anchorscope.models import Model

_HALF = (torch.bfloat16, torch.float16)


def can_be_float32(model: Model) -> bool:
    """Whether all of its weights are plain ones in half precision, in one place."""
    weights = list(model.lm.parameters())
    plain = getattr(model.lm, "hf_quantizer", None) is None
    whole = len({weight.device for weight in weights}) == 1 and weights[0].device.type != "meta"
    return plain and whole and all(weight.dtype in _HALF for weight in weights)


@contextmanager
def in_float32(model: Model) -> Iterator[None]:
    """The model with its half-precision weights as float32; afterwards as it was, bit for bit.

    Every bfloat16 and float16 is a float32, so the way there and back loses nothing.
    """
    tensors = [*model.lm.parameters(), *model.lm.buffers()]
    half = [(tensor, tensor.dtype) for tensor in tensors if tensor.dtype in _HALF]
    noted = noted_of(model.lm)
    try:
        for tensor, _ in half:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in half:
            tensor.data = tensor.data.to(dtype)
        note(model.lm, noted)  # memory was measured with weights of another size
