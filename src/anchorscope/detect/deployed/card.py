"""A detector's model card, and what of its model others may read."""

from __future__ import annotations

import html
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from anchorscope.detect.deployed.trained import READ_AT, Trained


def public(model: dict[str, Any]) -> dict[str, Any]:
    """What others may read of a detector's model: a place on somebody's disk is left out."""
    source, adapter = model.get("source") or model["name"], model.get("adapter")
    return model | {
        "source": Path(str(model["name"])).name if _is_local(source) else source,
        "adapter": Path(str(adapter)).name if adapter and _is_local(adapter) else adapter,
    }


def _is_local(place: str) -> bool:
    """Whether a model's place is a path rather than a name on the hub or `bundled`."""
    away = place.startswith((".", "~", "/")) or os.path.isabs(place) or place.count("/") > 1
    return away or "\\" in place or place.endswith(".gguf") or os.path.exists(place)


def _loading(model: dict[str, Any]) -> str:
    """The Python that loads a detector's model."""
    adapter = f", adapter={_quoted(model['adapter'])}" if model.get("adapter") else ""
    return f"load_model({_quoted(model['source'])}{adapter})"


def _quoted(text: object) -> str:
    """A text as Python and YAML write it: a name with a quotation mark in it ends nothing."""
    return json.dumps(str(text))


def _plain(text: object) -> str:
    """A text that Markdown shows as it is: no markup, no cell and no line ends in it."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`|\[\]])", r"\\\1", line)


def _naming(trained: Trained) -> str:
    return f", dataset={_quoted(trained.datasets[0])}" if len(trained.datasets) > 1 else ""


def model_card(trained: Trained) -> str:
    """README.md of the folder, with the metadata that the hub reads."""
    model = public(trained.model)
    name = _plain(model["name"])
    return f"""---
license: {_quoted(trained.licence.get("detector", "other"))}
library_name: anchorscope
base_model: {_quoted(model["source"])}
tags: [hallucination-detection, probing]
---

# {trained.method.name} for {name}

Gives the probability that a short answer of {name} to a question of fact is wrong.

```python
from anchorscope import Detector, load_model

detector = Detector.load("this folder or repository")
scored = detector.score({_loading(model)}, "Who painted it?"{_naming(trained)})
```

| | |
| --- | --- |
| Model | {name}, {model.get("dtype")}, revision {_plain(model.get("revision") or "–")} |
| Weights | fingerprint {_plain(model.get("weights"))} |
| Reads | {_reads(trained)} |
| Prompt | {_asked_as(trained)} |
| Trained on | {_learnt_from(trained.trained_on)} |
| Probability | {_plain(trained.calibrated_on)} |
| Threshold | {trained.threshold:.3f}{_unsure(trained)} |
| Before answering | {_warning(trained)} |
| Licence of the model | {_plain(trained.licence.get("model", "not recorded"))} |
| Licence of the data | {_plain(trained.licence.get("data", "not recorded"))} |

{trained.caution}

## Evaluation

On answers about things it was not trained on (folds disjoint by entity):

{_evaluation(trained.evaluation)}

## Limits

The probability holds for this model, dtype and prompt, on questions like those above. It says how
likely an answer is wrong, not what is right. On other questions, measure first:
`anchorscope detect eval --transfer`.
"""


def _unsure(trained: Trained) -> str:
    said = f". Promised: {trained.promise}" if trained.promise else ""
    if trained.band is None:
        return said
    return f"; cannot say between {trained.band[0]:.3f} and {trained.band[1]:.3f}{said}"


def _warning(trained: Trained) -> str:
    if trained.before is None:
        return "no warning was trained"
    area = _number(trained.before.evaluation.get("auroc"))
    return f"`detector.warn(model, question)` reads the question alone: AUROC {area}"


def _asked_as(trained: Trained) -> str:
    names = trained.datasets
    said = f"one of {_joined(names)} (dataset=, --as)" if len(names) > 1 else _joined(names)
    how = f"{trained.prompt['style']}, {trained.prompt['shots']} worked examples"
    return f"{how}; questions are asked as in {said}"


def _learnt_from(on: dict[str, Any]) -> str:
    return f"{on['answers']} answers ({on['wrong']} wrong) of {_joined(on['datasets'])}"


def _reads(trained: Trained) -> str:
    needed = trained.method.needs()
    if not needed:
        return "text and token probabilities"
    layers = sorted({layer for of in needed.values() for layer in of})
    said = "layer" if len(layers) == 1 else "layers"
    return f"{said} {_joined(map(str, layers))} at {READ_AT}"


def _evaluation(numbers: dict[str, Any]) -> str:
    rows = [f"| {name} | {_number(value)} |" for name, value in numbers.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "–"
    return _plain(value) if value is not None else "–"


def _joined(words: Any) -> str:
    return ", ".join(map(_plain, words))
