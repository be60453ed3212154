"""Is this model understood? Everything a run does, held against stock attention on the model."""

from anchorscope.engine.check.checks import Check, check_model, require_understood

__all__ = ["Check", "check_model", "require_understood"]
