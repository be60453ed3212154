"""A detector's folder: weights in safetensors, the rest in JSON, a model card.

The files are tied by checksums. Nothing is unpickled: a folder from a stranger can be refused,
but it cannot run code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from anchorscope.detect.deployed.before import Before
from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.card import model_card
from anchorscope.detect.deployed.checked import (
    Forged,
    check_about,
    check_size,
    check_tensors,
    check_works,
)
from anchorscope.detect.deployed.trained import READ_AT, Example, Trained
from anchorscope.detect.distance import Distance
from anchorscope.detect.kinds import DEPLOYED, METHODS
from anchorscope.detect.method import Platt
from anchorscope.detect.threshold import Promise
from anchorscope.errors import UserError
from anchorscope.run_folder.checks.room import check_writable
from anchorscope.run_folder.links import check_files
from anchorscope.run_folder.whole import put_whole, remove_partials

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
    """What `save_trained` saved; a folder that makes no sense is refused."""
    tensors, about = read_folder(folder)
    if str(about.get("name")) not in DEPLOYED:
        raise UserError(
            f"The detector in '{folder}' is of the kind '{about.get('name')}', which this version "
            f"does not deploy (it deploys {', '.join(DEPLOYED)}). Train it again: `anchorscope "
            "detect train`."
        )
    try:
        check_about(about)
        check_tensors(tensors)
        trained = _restored(tensors, about)
        check_works(trained)
    except (Forged, RecursionError) as error:
        raise _refused(folder, str(error)) from error
    return trained


def _restored(tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Trained:
    own = {name: of for name, of in tensors.items() if not name.startswith(_PARTS)}
    try:
        method = METHODS[about["name"]]().restore(own, about["method"])
        parts: dict[str, Any] = {
            "beliefs": Beliefs.restore(tensors),
            "distance": Distance.restore(tensors),
            "before": Before.restore(tensors, about.get("before")),
        }
        method.calibration_ = Platt(**about["calibration"])
        examples = tuple(
            Example(**e | {"prompt_ids": tuple(e["prompt_ids"])}) for e in about["examples"]
        )
        plain = {name: about[name] for name in _PLAIN}
        return Trained(method=method, examples=examples, **parts, **plain, **_cut_of(about))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Forged(f"its parts cannot be put together again ({error!r})") from error


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
    check_place(folder)
    if folder.is_dir():
        remove_partials(folder)
    weights = save({name: np.ascontiguousarray(of) for name, of in stored.tensors.items()})
    about = {"kind": KIND, "format": FORMAT, **stored.about}
    about["sha256"] = hashlib.sha256(weights).hexdigest()
    about["checksum"] = _checksum(about)
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    put_whole(folder / WEIGHTS, weights)
    put_whole(folder / CARD, card)
    put_whole(folder / ABOUT, text)


def check_place(folder: Path) -> None:
    """Raise a UserError where a detector cannot be saved: nothing else is written over."""
    check_writable(folder)
    names = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    names = {name for name in names if not name.startswith(".")}
    if names and not (names <= set(FILES) and names & {WEIGHTS, ABOUT}):
        raise UserError(
            f"'{folder}' exists and is not a detector's folder. Choose another --out, or empty it."
        )


def read_folder(folder: Path) -> Stored:
    """What `write_folder` wrote; a damaged or foreign folder is refused."""
    check_files(folder, FILES)
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
    except (json.JSONDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
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
