"""A detector's folder: weights in safetensors, the rest in JSON, a model card.

The files are tied by checksums. Nothing is unpickled: a folder from a stranger can be refused,
but it cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.checked import (
    Forged,
    check_about,
    check_size,
    check_tensors,
    check_works,
)
from anchorscope.detect.deployed.trained import READ_AT, Example, Trained
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.method import Platt
from anchorscope.errors import UserError

KIND, FORMAT = "anchorscope-detector", 1
_PLAIN = (
    "name", "model", "prompt", "threshold", "calibrated_on", "trained_on", "evaluation", "licence",
)  # fmt: skip
WEIGHTS, ABOUT, CARD = "detector.safetensors", "detector.json", "README.md"
_FREE = ("checksum", "licence")  # what the owner may write into detector.json by hand
FILES = (WEIGHTS, ABOUT, CARD)


class Stored(NamedTuple):
    """What a detector's folder holds."""

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]


def save_trained(trained: Trained, folder: Path) -> Path:
    """The folder, with weights, description and model card in it."""
    about = {name: getattr(trained, name) for name in _PLAIN} | {"tokens": READ_AT}
    about["method"] = trained.method.about()
    about["calibration"] = asdict(trained.method.calibration_)
    about["examples"] = [asdict(one) for one in trained.examples]
    beliefs = {} if trained.beliefs is None else trained.beliefs.tensors()
    write_folder(folder, Stored(trained.method.tensors() | beliefs, about), model_card(trained))
    return folder


def load_trained(folder: Path) -> Trained:
    """What `save_trained` saved; a folder that makes no sense is refused."""
    tensors, about = read_folder(folder)
    if about.get("name") not in METHODS:
        raise UserError(
            f"The detector in '{folder}' is of a kind '{about.get('name')}' that this version does "
            "not know. Update anchorscope."
        )
    try:
        check_about(about)
        check_tensors(tensors)
        trained = _restored(tensors, about)
        check_works(trained)
    except Forged as error:
        raise _refused(folder, str(error)) from error
    return trained


def _restored(tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Trained:
    own = {name: of for name, of in tensors.items() if not name.startswith("beliefs.")}
    try:
        method = METHODS[about["name"]]().restore(own, about["method"])
        beliefs = Beliefs.restore(tensors)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Forged(f"its method cannot be put together again ({error!r})") from error
    method.calibration_ = Platt(**about["calibration"])
    examples = tuple(
        Example(question=e["question"], prompt_ids=tuple(e["prompt_ids"]))
        for e in about["examples"]
    )
    plain = {name: about[name] for name in _PLAIN}
    return Trained(method=method, examples=examples, beliefs=beliefs, **plain)


def write_folder(folder: Path, stored: Stored, card: str) -> None:
    """Writes the files, the one that vouches for the others last."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(of) for name, of in stored.tensors.items()}
    unfinished = folder / f".{WEIGHTS}.partial"
    save_file(arrays, unfinished)
    about = {"kind": KIND, "format": FORMAT, **stored.about}
    about["sha256"] = hashlib.sha256(unfinished.read_bytes()).hexdigest()
    about["checksum"] = _checksum(about)
    os.replace(unfinished, folder / WEIGHTS)
    (folder / CARD).write_text(card, encoding="utf-8")
    unfinished = folder / f".{ABOUT}.partial"
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, folder / ABOUT)


def read_folder(folder: Path) -> Stored:
    """What `write_folder` wrote; a damaged or foreign folder is refused."""
    try:
        for name in (ABOUT, WEIGHTS):
            check_size(folder / name)
        text = (folder / ABOUT).read_text(encoding="utf-8")
        about = json.loads(text, parse_constant=_no_number)
        weights = (folder / WEIGHTS).read_bytes()
    except Forged as error:
        raise _refused(folder, str(error)) from error
    except FileNotFoundError as error:
        raise _refused(folder, f"{Path(str(error.filename)).name} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, NotADirectoryError, RecursionError) as error:
        raise _refused(folder, f"{ABOUT} cannot be read ({error})") from error
    _check(folder, about, weights)
    try:
        return Stored(load(weights), about)
    except SafetensorError as error:
        raise _refused(folder, f"{WEIGHTS} is damaged ({error})") from error


def _no_number(constant: str) -> None:
    raise Forged(f"{ABOUT} holds {constant}, which is no number of JSON")


def _check(folder: Path, about: Any, weights: bytes) -> None:
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise _refused(folder, f"{ABOUT} does not describe a detector of anchorscope")
    if about.get("format") != FORMAT:
        raise _refused(folder, f"it is of format {about.get('format')}, and {FORMAT} is read here")
    if about.get("checksum") != _checksum(about):
        raise _refused(folder, f"{ABOUT} was changed after it was written")
    if about.get("sha256") != hashlib.sha256(weights).hexdigest():
        raise _refused(folder, f"{WEIGHTS} is not the file that {ABOUT} was written for")


def _checksum(about: dict[str, Any]) -> str:
    kept = {name: value for name, value in about.items() if name not in _FREE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _refused(folder: Path, why: str) -> UserError:
    return UserError(
        f"No detector could be read from '{folder}': {why}. Get the folder again, or train the "
        "detector again."
    )


def public(model: dict[str, Any]) -> dict[str, Any]:
    """What others may read of a detector's model: a place on somebody's disk is left out."""
    source, adapter = model.get("source") or model["name"], model.get("adapter")
    return model | {
        "source": Path(str(model["name"])).name if _is_local(source) else source,
        "adapter": Path(str(adapter)).name if adapter and _is_local(adapter) else adapter,
    }


def _is_local(place: str) -> bool:
    """Whether a model's place is a path rather than a name on the hub or `bundled`."""
    path = Path(place).expanduser()
    away = place.startswith((".", "~")) or path.is_absolute() or place.count("/") > 1
    return away or "\\" in place or path.suffix == ".gguf" or path.exists()


def _loading(model: dict[str, Any]) -> str:
    """The Python that loads a detector's model."""
    adapter = f', adapter="{model["adapter"]}"' if model.get("adapter") else ""
    return f'load_model("{model["source"]}"{adapter})'


def model_card(trained: Trained) -> str:
    """README.md of the folder, with the metadata that the hub reads."""
    model = public(trained.model)
    return f"""---
license: {trained.licence.get("detector", "other")}
library_name: anchorscope
base_model: {json.dumps(model["source"])}
tags: [hallucination-detection, probing]
---

# {trained.method.name} for {model["name"]}

Gives the probability that a short answer of {model["name"]} to a question of fact is wrong.

```python
from anchorscope import Detector, load_model

detector = Detector.load("this folder or repository")
scored = detector.score({_loading(model)}, "Who painted it?")
```

| | |
| --- | --- |
| Model | {model["name"]}, {model.get("dtype")}, revision {model.get("revision") or "–"} |
| Weights | fingerprint {model.get("weights")} |
| Reads | {_reads(trained)} |
| Prompt | {trained.prompt["style"]}, {trained.prompt["shots"]} worked examples |
| Trained on | {_learnt_from(trained.trained_on)} |
| Probability | {trained.calibrated_on} |
| Threshold | {trained.threshold:.3f} |
| Licence of the model | {trained.licence.get("model", "not recorded")} |
| Licence of the data | {trained.licence.get("data", "not recorded")} |

## Evaluation

On answers about things it was not trained on (folds disjoint by entity):

{_evaluation(trained.evaluation)}

## Limits

The probability holds for this model, dtype and prompt, on questions like those above. It says how
likely an answer is wrong, not what is right. On other questions, measure first:
`anchorscope detect eval --transfer`.
"""


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
    return str(value) if value is not None else "–"


def _joined(words: Any) -> str:
    return ", ".join(words)
