"""Is this model understood? Everything a run does, held against stock attention on the model."""

from anchorscope.engine.check.checks import Check, check_model
from anchorscope.engine.check.proof import require_understood
from anchorscope.engine.check.states import check_states

__all__ = ["Check", "check_model", "check_states", "require_understood"]
