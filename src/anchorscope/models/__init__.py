"""Models: locate, load and fetch them, find their parts, and make prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorscope.models.load import Model, load_model

__all__ = ["LOADING", "Model", "load_model"]
# The options of `load_model` that a run and the commands have, by the same name.
LOADING = (
    "device", "dtype", "revision", "adapter", "trust_remote_code", "engine", "tensor_parallel",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: locating a model needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'anchorscope.models' has no attribute '{name}'")
    from anchorscope.models import load

    return getattr(load, name)
