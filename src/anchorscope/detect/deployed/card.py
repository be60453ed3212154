"""A detector's model card, and what of its model others may read."""

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

READ_AT = "the last token of the answer entity (E_A)"
_BODY = """
# {title} for {name}

Gives the probability that a short answer of {name} to a question of fact is wrong.

```python
from anchorscope import Detector, load_model

detector = Detector.load("this folder or repository")
scored = detector.score({loading}, "Who painted it?"{dataset})
```

| | |
| --- | --- |
| Model | {name}, {dtype}, revision {revision} |
| Weights | fingerprint {weights} |
| Reads | {reads} |
| Prompt | {prompt} |
| Trained on | {trained_on} |
| Probability | {calibrated_on} |
| Threshold | {threshold} |
| Before answering | {pre_answer} |
| Licence of the model | {model_licence} |
| Licence of the data | {data_licence} |

{caution}

## Evaluation

On answers about things it was not trained on (folds disjoint by entity):

{evaluation}

## Limits

The probability holds for this model, dtype and prompt, on questions like those above. It says how
likely an answer is wrong, not what is right. On other questions, measure first:
`anchorscope detect eval --transfer`.
"""


def public(model: Mapping[str, Any]) -> dict[str, Any]:
    """What others may read of a detector's model: a path on this machine is left out."""
    source, adapter = model.get("source") or model["name"], model.get("adapter")
    return dict(model) | {
        "source": Path(str(model["name"])).name if _is_local(source) else source,
        "adapter": Path(str(adapter)).name if adapter and _is_local(adapter) else adapter,
    }


def _is_local(place: str) -> bool:
    """Whether a model's place is a path rather than a name on the hub or `bundled`."""
    away = place.startswith((".", "~", "/")) or os.path.isabs(place) or place.count("/") > 1
    return away or "\\" in place or place.endswith(".gguf") or os.path.exists(place)


def model_card(about: Mapping[str, Any], *, title: str, caution: str) -> str:
    """README.md of a detector's folder, with the metadata that the hub reads.

    `about` is what detector.json holds; `title` names the kind of detector.
    """
    model, licence = public(about["model"]), about["licence"]
    datasets = list(dict.fromkeys(example["dataset"] for example in about["examples"]))
    metadata = ModelCardData(
        license=str(licence.get("detector", "other")),
        library_name="anchorscope",
        base_model=str(model["source"]),
        tags=["hallucination-detection", "probing"],
    )
    adapter = f", adapter={_quoted(model['adapter'])}" if model.get("adapter") else ""
    trained_on, style = about["trained_on"], about["prompt"]
    body = _BODY.format(
        title=title,
        name=_plain(model["name"]),
        loading=f"load_model({_quoted(model['source'])}{adapter})",
        dataset=f", dataset={_quoted(datasets[0])}" if len(datasets) > 1 else "",
        dtype=model.get("dtype"),
        revision=_plain(model.get("revision") or "–"),
        weights=_plain(model.get("weights")),
        reads=_reads(about["method"]),
        prompt=f"{style['style']}, {style['shots']} worked examples; questions are asked as in "
        + (f"one of {_joined(datasets)} (dataset=, --as)" if datasets[1:] else _joined(datasets)),
        trained_on=f"{trained_on['answers']} answers ({trained_on['wrong']} wrong) of "
        f"{_joined(trained_on['datasets'])}",
        calibrated_on=_plain(about["calibrated_on"]),
        threshold=_threshold(about),
        pre_answer=_pre_answer(about.get("before")),
        model_licence=_plain(licence.get("model", "not recorded")),
        data_licence=_plain(licence.get("data", "not recorded")),
        caution=caution,
        evaluation="\n".join(
            ["| | |", "| --- | --- |"]
            + [f"| {name} | {_number(value)} |" for name, value in about["evaluation"].items()]
        ),
    )
    return str(ModelCard(f"---\n{metadata.to_yaml()}\n---\n{body}"))


def _reads(method: Mapping[str, Any]) -> str:
    layers = method.get("layers") or [layer for layer in [method.get("layer")] if layer]
    if not layers:
        return "text and token probabilities"
    return f"{'layer' if len(layers) == 1 else 'layers'} {_joined(layers)} at {READ_AT}"


def _threshold(about: Mapping[str, Any]) -> str:
    band, promise = about.get("band"), about.get("promise")
    return (
        f"{about['threshold']:.3f}"
        + (f"; cannot say between {band[0]:.3f} and {band[1]:.3f}" if band else "")
        + (f". Promised: {promise['says']}" if promise else "")
    )


def _pre_answer(probe: Mapping[str, Any] | None) -> str:
    if probe is None:
        return "no warning was trained"
    area = _number(probe["evaluation"].get("auroc"))
    return f"`detector.warn(model, question)` reads the question alone: AUROC {area}"


def _quoted(text: object) -> str:
    """A text as Python writes it: a name with a quotation mark in it ends nothing."""
    return json.dumps(str(text))


def _plain(text: object) -> str:
    """A text that Markdown shows as it is: no markup, no cell and no line ends in it."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`|\[\]])", r"\\\1", line)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "–"
    return _plain(value) if value is not None else "–"


def _joined(words: Iterable[object]) -> str:
    return ", ".join(map(_plain, words))
