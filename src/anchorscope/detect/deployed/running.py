"""P(wrong) of an answer that is still being written, as if it ended with its newest token."""

from __future__ import annotations

import numpy as np

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import Entity, LocatedAnswer, material_of, unknown_answer
from anchorscope.records import Span


class RunningScore:
    """By the detector itself where it reads clean states alone, else by a layer's probe.

    Both are one product with a state that was computed anyway. A detector that needs token
    probabilities has the calibrated probe that `belief` shows, at the layer its training chose;
    one that keeps no such probes has no running number.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector, self._beliefs = detector, detector.beliefs
        self.by, self.layers = "", (1,)  # one at least: a token is recorded with its states
        if detector.reads_states_alone:
            self.by, self.layers = f"detector {detector.name}", detector.method.layers()
        elif self._beliefs is not None:
            self.by = f"probe of layer {self._beliefs.gate_layer}"
            self.layers = (self._beliefs.gate_layer,)

    def probabilities(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) from states [token, layer, width] of `layers`, [token]; NaN: no such number."""
        if self._detector.reads_states_alone:
            by_layer = {("clean", k): states[:, n] for n, k in enumerate(self.layers)}
            return self._detector.score_of(material_of([_NAMELESS] * len(states), by_layer))[1]
        if self._beliefs is None:
            return np.full(len(states), np.nan)
        return self._beliefs.wrong_at(self._beliefs.gate_layer, states[:, 0])

    def fields(self, states: np.ndarray) -> dict[str, object]:
        """The number at the newest token [layer, width] for a client, its flag, and its source."""
        probability = float(self.probabilities(states[None])[0])
        known = bool(np.isfinite(probability))
        flagged = probability > self._detector.threshold if known else None
        return {"probability": probability if known else None, "flagged": flagged, "by": self.by}


_NAMELESS = LocatedAnswer(
    question="",
    answer=unknown_answer("", (), 0),
    entities=(Entity(span=Span(0, 0), tokens=(0,), sentence=Span(0, 0)),),
)
