"""P(wrong) of an answer that is still being written, as if it ended with its newest token."""

from __future__ import annotations

import numpy as np

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import LocatedAnswer, material_of, unknown_answer


class Running:
    """By the detector itself where it reads clean states alone, else by a layer's probe.

    Both are one product with a state that was computed anyway. A detector that needs more (token
    probabilities, another pass) has the calibrated probe that `belief` shows, at the layer its
    training chose; one that keeps no such probes has no running number.
    """

    def __init__(self, detector: Detector, *, blocks: int) -> None:
        method, beliefs = detector.method, detector.beliefs
        needs = method.needs()
        self._detector, self._beliefs = detector, beliefs
        self.by, self.layers = "", (1,)  # one at least: a token is told with its states
        if set(needs) == {"clean"} and not method.reads_tokens:
            self.by, self.layers = f"detector {detector.name}", tuple(sorted(needs["clean"]))
        elif beliefs is not None:
            self.by = f"probe of layer {beliefs.gate_layer}"
            self.layers = tuple(range(1, blocks + 1))

    def probability(self, states: np.ndarray) -> float:
        """P(wrong) from the states [layer, width] of `layers` at the newest token; NaN: none."""
        if not self.by:
            return float("nan")
        if self._beliefs is not None and not self.by.startswith("detector"):
            return float(self._beliefs.wrong(states[None])[0, self._beliefs.gate_layer - 1])
        by_layer = {("clean", k): states[None, n] for n, k in enumerate(self.layers)}
        _, probability = self._detector.score_of(material_of([_NAMELESS], by_layer))
        return float(probability[0])

    def of(self, states: np.ndarray) -> dict[str, object]:
        """The same for a client: probability, flag, and whose number it is."""
        probability = self.probability(states)
        known = bool(np.isfinite(probability))
        flagged = probability > self._detector.threshold if known else None
        return {"probability": probability if known else None, "flagged": flagged, "by": self.by}


_NAMELESS = LocatedAnswer(
    question="", answer=unknown_answer("", (), 0), exact_answer=(0,), answer_entity=""
)
