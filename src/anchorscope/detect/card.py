"""The model card that goes with a detector: what it is for, how good it was, what it is not."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorscope.detect.detector import Detector


def model_card(detector: Detector) -> str:
    """README.md of the folder, with the metadata that the hub reads."""
    model = detector.model
    return f"""---
license: {detector.licence.get("detector", "other")}
library_name: anchorscope
base_model: {json.dumps(model.get("source") or model["name"])}
tags: [hallucination-detection, probing]
---

# {detector.method.name} for {model["name"]}

Gives the probability that a short answer of {model["name"]} to a question of fact is wrong.

```python
from anchorscope import Detector, load_model

detector = Detector.load("this folder or repository")
scored = detector.score(load_model("{model.get("source") or model["name"]}"), "Who painted it?")
```

| | |
| --- | --- |
| Model | {model["name"]}, {model.get("dtype")}, revision {model.get("revision") or "–"} |
| Weights | fingerprint {model.get("weights")} |
| Reads | {_reads(detector)} |
| Prompt | {detector.prompt["style"]}, {detector.prompt["shots"]} worked examples |
| Trained on | {_trained(detector.trained_on)} |
| Probability | {detector.calibrated_on} |
| Threshold | {detector.threshold:.3f} |
| Licence of the model | {detector.licence.get("model", "not recorded")} |
| Licence of the data | {detector.licence.get("data", "not recorded")} |

## Evaluation

On answers about things it was not trained on (folds disjoint by entity):

{_evaluation(detector.evaluation)}

## Limits

The probability holds for this model, dtype and prompt, on questions like those above. It says how
likely an answer is wrong, not what is right. On other questions, measure first:
`anchorscope detect eval --transfer`.
"""


def _trained(on: dict[str, Any]) -> str:
    return f"{on['answers']} answers ({on['wrong']} wrong) of {_joined(on['datasets'])}"


def _reads(detector: Detector) -> str:
    needed = detector.method.needs()
    if not needed:
        return "text and token probabilities"
    layers = sorted({layer for of in needed.values() for layer in of})
    said = "layer" if len(layers) == 1 else "layers"
    return f"{said} {_joined(map(str, layers))} at {detector.tokens}"


def _evaluation(found: dict[str, Any]) -> str:
    rows = [f"| {name} | {_number(value)} |" for name, value in found.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "–"
    return str(value) if value is not None else "–"


def _joined(words: Any) -> str:
    return ", ".join(words)
