"""Models: load one by any name, know its parts, prompt it, prove the knockout on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorscope.models.load import Model, load_model

__all__ = ["Model", "load_model"]


def __getattr__(name: str) -> Any:
    """The public names when they are first used: where a model lies is known without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'anchorscope.models' has no attribute '{name}'")
    from anchorscope.models import load

    return getattr(load, name)
