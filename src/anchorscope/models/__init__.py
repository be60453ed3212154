"""Models: load one by any name, know its parts, prompt it, prove the knockout on it."""

from anchorscope.models.load import Model, load_model

__all__ = ["Model", "load_model"]
