"""Check that the engine agrees with transformers' own (stock) attention on a model."""

from anchorscope.engine.check.checks import Check, check_model, require_understood
from anchorscope.engine.check.served import check_served
from anchorscope.engine.check.states import check_states

__all__ = ["Check", "check_model", "check_served", "check_states", "require_understood"]
