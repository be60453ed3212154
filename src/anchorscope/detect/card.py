"""Write a detector's model card, without paths of this machine."""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment

_BODY = r"""
# {{ method.name }} for {{ model.name|plain }}

Gives the probability that a short answer of {{ model.name|plain }} to a question of fact is wrong.

```python
from anchorscope import Detector, load_model

detector = Detector.load("this folder or repository")
{% set adapter = ", adapter=" ~ model.adapter|quoted if model.adapter else "" -%}
{% set more = ", dataset=" ~ datasets[0]|quoted if datasets[1:] else "" -%}
scored = detector.score(load_model({{ model.source|quoted }}{{ adapter }}), "Who?"{{ more }})
```

| | |
| --- | --- |
| Model | {{ model.name|plain }}, {{ model.dtype }}, revision {{ (model.revision or "–")|plain }} |
| Weights | fingerprint {{ model.weights|plain }} |
| Reads | {% set layers = method.layers() -%}
{% if layers %}layer{{ "s" if layers[1:] }} {{ layers|joined }} at the \
last token of the answer entity (E_A){% else %}text and token probabilities{% endif %}\
{% if method.samples_ %}, and {{ method.samples_ }} answers drawn at temperature \
{{ method.temperature_ }} for each that it scores{% endif %} |
| Prompt | {{ prompt.style }}, {{ prompt.shots }} worked examples; questions are asked as in \
{{ "one of " if datasets[1:] }}{{ datasets|joined }}{{ " (dataset=, --as)" if datasets[1:] }} |
| Trained on | {{ trained_on.answers }} answers ({{ trained_on.wrong }} wrong) of \
{{ trained_on.datasets|joined }} |
| Probability | {{ calibrated_on|plain }} |
| Threshold | {{ threshold|number }}\
{% if band %}; cannot say between {{ band[0]|number }} and {{ band[1]|number }}{% endif %}\
{% if promise %}. Promised: {{ promise }}{% endif %} |
| Before answering | {% if pre_answer %}`detector.warn(model, question)` reads the question alone: \
AUROC {{ pre_answer.evaluation.auroc|number }}{% else %}no warning was trained{% endif %} |
| Licence of the model | {{ (licence.model or "not recorded")|plain }} |
| Licence of the data | {{ (licence.data or "not recorded")|plain }} |

{{ caution }}

## Evaluation

On answers about things it was not trained on (folds disjoint by entity):

| | |
| --- | --- |
{% for name, value in evaluation.items() -%}
| {{ name|plain }} | {{ value|number }} |
{% endfor %}
## Limits

The probability holds for this model, dtype and prompt, on questions like those above. It says how
likely an answer is wrong, not what is right. On other questions, measure first:
`anchorscope detect eval --transfer`.
"""


def public(model: Mapping[str, Any]) -> dict[str, Any]:
    """A detector's model facts for publication: local paths are cut to their last part."""
    source, adapter = model.get("source") or model["name"], model.get("adapter")
    return dict(model) | {
        "source": Path(str(model["name"])).name if _is_local(source) else source,
        "adapter": Path(str(adapter)).name if adapter and _is_local(adapter) else adapter,
    }


def _is_local(place: str) -> bool:
    """Whether a model's place is a path rather than a name on the hub or `bundled`."""
    away = place.startswith((".", "~", "/")) or os.path.isabs(place) or place.count("/") > 1
    return away or "\\" in place or place.endswith(".gguf") or os.path.exists(place)


def model_card(facts: Mapping[str, Any]) -> str:
    """README.md of a detector's folder, with the metadata that the hub reads.

    `facts` are the fields of a detector, its `datasets` and `caution`.
    """
    model = public(facts["model"])
    metadata = ModelCardData(
        license=str(facts["licence"].get("detector", "other")),
        library_name="anchorscope",
        base_model=str(model["source"]),
        tags=["hallucination-detection", "probing"],
    )
    # Not HTML: the filters keep a name from being read as Markdown or as Python.
    page = Environment(autoescape=False, keep_trailing_newline=True)  # nosec B701
    page.filters |= {"plain": _plain, "quoted": _quoted, "number": _number, "joined": _joined}
    body = page.from_string(_BODY.replace("\\\n", "")).render(**{**facts, "model": model})
    return str(ModelCard(f"---\n{metadata.to_yaml()}\n---\n{body}"))


def _quoted(text: object) -> str:
    """Quote a text as a Python string literal, with quotation marks escaped."""
    return json.dumps(str(text))


def _plain(text: object) -> str:
    """Escape a text for a cell of a Markdown table, on one line."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`|\[\]])", r"\\\1", line)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "–"
    return _plain(value) if value is not None else "–"


def _joined(words: Iterable[object]) -> str:
    return ", ".join(map(_plain, words))
