"""What a warning before the answer knows: a calibrated probe at the last question token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anchorscope.detect.kinds.probes import QuestionOnly, linear
from anchorscope.detect.material import Material
from anchorscope.detect.method import Platt
from anchorscope.detect.threshold import best_threshold


@dataclass(frozen=True, kw_only=True)
class Before:
    """The probe at the last question token, calibrated, with the AUROC it is accepted with."""

    layer: int
    coef: np.ndarray  # [width]
    intercept: float
    calibration: Platt
    threshold: float
    evaluation: dict[str, Any]  # auroc, auroc_low, auroc_high, n: on unseen entities

    def probability(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) from states [question, width] at the last question token, [question]."""
        return self.calibration.probability(linear(states, self.coef, self.intercept))

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays that make it up, ready for safetensors."""
        return {"before.coef": self.coef, "before.intercept": np.array([self.intercept])}

    def about(self) -> dict[str, Any]:
        """What else makes it up, ready for JSON."""
        kept = {"layer": self.layer, "threshold": self.threshold, "evaluation": self.evaluation}
        return kept | {"calibration": asdict(self.calibration)}

    @classmethod
    def restore(cls, tensors: dict[str, np.ndarray], about: dict[str, Any] | None) -> Before | None:
        """What `tensors` and `about` gave; None where a folder holds none."""
        if about is None:
            return None
        return cls(
            layer=int(about["layer"]),
            coef=tensors["before.coef"],
            intercept=float(tensors["before.intercept"][0]),
            calibration=Platt(**about["calibration"]),
            threshold=float(about["threshold"]),
            evaluation=about["evaluation"],
        )


def learn_before(material: Material, evaluation: dict[str, Any]) -> Before | None:
    """The warning, trained on the material of a detector; None without the states it reads."""
    probe = QuestionOnly()
    if probe.lacks(material):
        return None
    probe.fit(material)
    held_out = probe.calibration_.probability(probe.inner_scores_)
    return Before(
        layer=probe.layer_,
        coef=probe.coef_,
        intercept=probe.intercept_,
        calibration=probe.calibration_,
        threshold=best_threshold(held_out, material.z),
        evaluation=evaluation,
    )
