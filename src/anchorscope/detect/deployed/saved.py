"""A detector's folder: weights in safetensors, the rest in JSON, a model card; here or on the hub.

The files are tied by checksums. Nothing is unpickled: a folder from a stranger can be refused,
but it cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from anchorscope.detect.deployed.before import Before
from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.trained import READ_AT, Example, Trained
from anchorscope.detect.distance import Distance
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.method import Platt
from anchorscope.detect.threshold import Promise
from anchorscope.errors import UserError

KIND, FORMAT = "anchorscope-detector", 1
_PLAIN = (
    "name", "model", "prompt", "threshold", "calibrated_on", "trained_on", "evaluation", "licence",
)  # fmt: skip
WEIGHTS, ABOUT, CARD = "detector.safetensors", "detector.json", "README.md"
_PARTS = ("beliefs.", "distance.", "before.")  # what is kept beside the method's own weights
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
    about["id"], about["band"] = trained.id, trained.band and list(trained.band)
    about["before"] = trained.before and trained.before.about()
    if trained.promise is not None:
        about["promise"] = asdict(trained.promise) | {"says": str(trained.promise)}
    tensors = trained.method.tensors()
    for part in (trained.beliefs, trained.distance, trained.before):
        tensors |= {} if part is None else part.tensors()
    write_folder(folder, Stored(tensors, about), model_card(trained))
    return folder


def load_trained(folder: Path) -> Trained:
    """What `save_trained` saved."""
    tensors, about = read_folder(folder)
    if about["name"] not in METHODS:
        raise UserError(
            f"The detector in '{folder}' is of a kind '{about['name']}' that this version does "
            "not know. Update anchorscope."
        )
    own = {name: of for name, of in tensors.items() if not name.startswith(_PARTS)}
    method = METHODS[about["name"]]().restore(own, about["method"])
    method.calibration_ = Platt(**about["calibration"])
    examples = tuple(
        Example(**e | {"prompt_ids": tuple(e["prompt_ids"])}) for e in about["examples"]
    )
    plain = {name: about[name] for name in _PLAIN}
    parts: dict[str, Any] = {
        "beliefs": Beliefs.restore(tensors),
        "distance": Distance.restore(tensors),
    }
    parts["before"] = Before.restore(tensors, about.get("before"))
    return Trained(method=method, examples=examples, **parts, **plain, **_cut_of(about))


def _cut_of(about: dict[str, Any]) -> dict[str, Any]:
    """Band and promise, where the folder holds them."""
    band, promise = about.get("band"), about.get("promise")
    kept = {f.name for f in fields(Promise)}
    return {
        "band": band and (float(band[0]), float(band[1])),
        "promise": promise and Promise(**{k: v for k, v in promise.items() if k in kept}),
    }


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
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        weights = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        raise _refused(folder, f"{Path(str(error.filename)).name} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, NotADirectoryError) as error:
        raise _refused(folder, f"{ABOUT} cannot be read ({error})") from error
    _check(folder, about, weights)
    try:
        return Stored(load(weights), about)
    except SafetensorError as error:
        raise _refused(folder, f"{WEIGHTS} is damaged ({error})") from error


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


def _loading(model: dict[str, Any]) -> str:
    """The Python that loads a detector's model."""
    adapter = f', adapter="{model["adapter"]}"' if model.get("adapter") else ""
    return f'load_model("{model.get("source") or model["name"]}"{adapter})'


def _naming(trained: Trained) -> str:
    return f', dataset="{trained.datasets[0]}"' if len(trained.datasets) > 1 else ""


def model_card(trained: Trained) -> str:
    """README.md of the folder, with the metadata that the hub reads."""
    model = trained.model
    return f"""---
license: {trained.licence.get("detector", "other")}
library_name: anchorscope
base_model: {json.dumps(model.get("source") or model["name"])}
tags: [hallucination-detection, probing]
---

# {trained.method.name} for {model["name"]}

Gives the probability that a short answer of {model["name"]} to a question of fact is wrong.

```python
from anchorscope import Detector, load_model

detector = Detector.load("this folder or repository")
scored = detector.score({_loading(model)}, "Who painted it?"{_naming(trained)})
```

| | |
| --- | --- |
| Model | {model["name"]}, {model.get("dtype")}, revision {model.get("revision") or "–"} |
| Weights | fingerprint {model.get("weights")} |
| Reads | {_reads(trained)} |
| Prompt | {_asked_as(trained)} |
| Trained on | {_learnt_from(trained.trained_on)} |
| Probability | {trained.calibrated_on} |
| Threshold | {trained.threshold:.3f}{_unsure(trained)} |
| Before answering | {_warning(trained)} |
| Licence of the model | {trained.licence.get("model", "not recorded")} |
| Licence of the data | {trained.licence.get("data", "not recorded")} |

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
    return str(value) if value is not None else "–"


def _joined(words: Any) -> str:
    return ", ".join(words)


def fetch(place: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a detector: itself where it is one, else the files of a hub repository."""
    folder = Path(place).expanduser()
    name = str(place)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"There is no folder '{place}', and the hub gave no repository of that name: "
            f"{str(error).splitlines()[0]}"
        ) from error


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """The address of the repository, after the checked files of the folder are in it."""
    read_folder(folder)  # what could not be loaded again is not given to others
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(FILES),
            commit_message="A detector of wrong answers",
        )
    except (HfHubHTTPError, OSError) as error:
        raise UserError(
            f"'{repository}' could not be written: {str(error).splitlines()[0]} Log in with "
            "`hf auth login`, and give org/name."
        ) from error
    return f"{api.endpoint}/{repository}"
