"""Models: locate, load and fetch them, find their parts, and make prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorscope.models.load import Model, load_model

__all__ = ["Model", "load_model"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: locating a model needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'anchorscope.models' has no attribute '{name}'")
    from anchorscope.models import load

    return getattr(load, name)
