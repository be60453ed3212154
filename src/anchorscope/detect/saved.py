"""Save and load a detector's folder (safetensors, JSON, model card), also on the hub.

The files are tied by checksums. Nothing is unpickled, so an untrusted folder cannot run code.
Sizes are checked before reading, and every field has a rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
    with_config,
)
from pydantic_core import to_jsonable_python
from safetensors import SafetensorError
from safetensors.numpy import load, save
from typing_extensions import TypedDict

from anchorscope.detect.calibration import Count, Isotonic, Platt, Promise, Share
from anchorscope.detect.kinds import DEPLOYED, METHODS
from anchorscope.detect.prompts import Example
from anchorscope.detect.side_probes import Beliefs, Distance, PreAnswerProbe, from_arrays
from anchorscope.errors import CONTROLS, UserError, in_a_line, user_path
from anchorscope.run_folder.disk import check_writable, refuse_unsafe, remove_partials, write_atomic
from anchorscope.run_folder.manifest import Checked

KIND, FORMAT = "anchorscope-detector", 4
WEIGHTS, ABOUT, CARD = "detector.safetensors", "detector.json", "README.md"
FILES = (WEIGHTS, ABOUT, CARD)
MOST_BYTES = {ABOUT: 64 << 20, WEIGHTS: 4 << 30}
_FREE = ("checksum", "licence")  # what the owner may write into detector.json by hand
_NUMBERS = ("pre_answer.intercept",)  # a number here, and elsewhere an array
_PREFIXES = ("beliefs.", "distance.", "pre_answer.")  # of weights beside the method's


class Forged(Exception):
    """A detector's folder is damaged or breaks a rule; the message says how."""


# --- The rules of detector.json ---


def _no_controls(text: str) -> str:
    if CONTROLS.search(text):
        raise ValueError("a control character, which would act on a terminal")
    return text


def _fact(value: Any) -> Any:
    if isinstance(value, str) and len(value) <= 1000:
        return _no_controls(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and abs(float(value)) <= 1e12):  # no NaN is within this bound
        return value
    raise ValueError("a finite number, null, or a text of 1000 characters at most is accepted")


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_no_controls)]
_Fact = Annotated[Any, AfterValidator(_fact)]


@with_config(_STRICT)
class ModelFacts(TypedDict):
    """The model that a detector belongs to."""

    name: _Name
    source: NotRequired[_Name | None]
    adapter: NotRequired[_Name | None]
    revision: NotRequired[_Name | None]
    weights: _Name
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    blocks: Annotated[int, Field(ge=1, le=10_000)]
    width: Annotated[int, Field(ge=1, le=1 << 20)]


@with_config(_STRICT)
class PromptFacts(TypedDict):
    """The prompt of the training questions."""

    style: Literal["chat", "text", "given"]
    shots: Annotated[int, Field(ge=0, le=1000)]
    max_tokens: Annotated[int, Field(ge=1, le=4096)]
    finder: Annotated[str, Field(max_length=100)]


@with_config(_STRICT)
class TrainedOn(TypedDict):
    """The answers that a detector learnt from."""

    datasets: Annotated[list[_Name], Field(min_length=1)]
    answers: Count
    wrong: Count


class PreAnswerFacts(BaseModel):
    """The fields of the pre-answer probe in detector.json."""

    model_config = _STRICT
    threshold: Share
    calibration: Platt | Isotonic
    evaluation: dict[_Name, _Fact]


class Description(BaseModel):
    """The fields of detector.json with their validation rules."""

    model_config = _STRICT
    name: str
    model: ModelFacts
    prompt: PromptFacts
    examples: Annotated[tuple[Example, ...], Field(max_length=100_000)]  # none: given prompts
    threshold: Share
    band: tuple[Share, Share] | None
    promise: Promise | None
    calibration: Platt | Isotonic
    calibrated_on: Annotated[str, Field(max_length=100_000)]
    trained_on: TrainedOn
    evaluation: dict[_Name, _Fact]
    licence: dict[_Name, _Fact]
    pre_answer: PreAnswerFacts | None

    @model_validator(mode="after")
    def _fits_together(self) -> Description:
        trained, promise, steps = self.trained_on, self.promise, self.calibration
        low, high = (self.evaluation.get(f"auroc_{end}") for end in ("low", "high"))
        rules = {
            "its examples are none, so its prompt is not known":
                bool(self.examples) or self.prompt["style"] == "given",
            f"its band is {self.band}, which does not hold its threshold {self.threshold}":
                self.band is None or self.band[0] <= self.threshold <= self.band[1],
            f"its trained_on: {trained['wrong']} of {trained['answers']} are wrong":
                trained["wrong"] <= trained["answers"],
            f"its evaluation: the AUROC has an interval from {low} to {high}":
                not (isinstance(low, float) and isinstance(high, float) and low > high),
            f"its promise: {promise} is not supported by its own counts":
                promise is None
                or (promise.wrong <= promise.accepted <= promise.entities and promise.supported),
            "its calibration: scores and probabilities are to rise together":
                isinstance(steps, Platt) or (
                    len(steps.scores) == len(steps.probabilities)
                    and _rises(steps.scores) and _rises(steps.probabilities)
                ),
        }  # fmt: skip
        for broken, holds in rules.items():
            if not holds:
                raise ValueError(broken)
        return self


def _rises(values: Any) -> bool:
    return bool((np.diff(values) >= 0).all())


# --- Files ---


class Stored(NamedTuple):
    """The contents of a detector's folder: tensors, and the fields of detector.json."""

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]


def write_folder(folder: Path, stored: Stored, card: str) -> None:
    """Write a detector's folder; detector.json, which holds the checksums, comes last."""
    check_place(folder)
    if folder.is_dir():
        remove_partials(folder)
    weights = save({name: np.asarray(a, order="C") for name, a in stored.tensors.items()})
    about = {"kind": KIND, "format": FORMAT, **to_jsonable_python(stored.about)}
    about["sha256"] = hashlib.sha256(weights).hexdigest()
    about["checksum"] = checksum(about)
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(folder / WEIGHTS, weights)
    write_atomic(folder / CARD, card)
    write_atomic(folder / ABOUT, text)


def check_place(folder: Path) -> None:
    """Raise a UserError if a detector cannot be saved there; other files are not overwritten."""
    check_writable(folder)
    names = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    names = {name for name in names if not name.startswith(".")}
    if names and not (names <= set(FILES) and names & {WEIGHTS, ABOUT}):
        raise UserError(
            f"'{folder}' exists and is not a detector's folder. Choose another --out, or empty it."
        )


def read_folder(folder: Path) -> Stored:
    """Read a detector's folder and check its checksums; refuse a damaged or foreign one."""
    with _refusing(folder):
        return _read(folder)


def load_folder(folder: Path) -> dict[str, Any]:
    """Read the fields of the `Detector` in a folder; validate every field and weight."""
    with _refusing(folder):
        return _parts(_read(folder))


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn any error in reading a folder into one UserError."""
    refuse_unsafe(folder, FILES)
    try:
        yield
        return
    except Forged as error:
        reason = str(error)
    except FileNotFoundError as error:
        reason = f"{Path(str(error.filename)).name} is missing"
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        reason = f"a file cannot be read ({error})"
    raise UserError(
        f"No detector could be read from '{folder}': {reason}. Get the folder again, or train the "
        "detector again."
    )


def _read(folder: Path) -> Stored:
    for name, most in MOST_BYTES.items():
        size = (folder / name).stat().st_size
        if size > most:
            raise Forged(f"{name} has {size} bytes, and {most} are read at most")
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"), parse_constant=_no_number)
    weights = (folder / WEIGHTS).read_bytes()
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise Forged(f"{ABOUT} does not describe a detector of anchorscope")
    if about.get("format") != FORMAT:
        raise Forged(f"it is of format {about.get('format')}, and {FORMAT} is read here")
    if about.get("checksum") != checksum(about):
        raise Forged(f"{ABOUT} was changed after it was written")
    if about.get("sha256") != hashlib.sha256(weights).hexdigest():
        raise Forged(f"{WEIGHTS} is not the file that {ABOUT} was written for")
    return Stored(load(weights), about)


def _no_number(constant: str) -> None:
    raise Forged(f"{ABOUT} holds {constant}, which is no number of JSON")


def checksum(about: dict[str, Any]) -> str:
    """The SHA-256 of a description without the fields that its owner may edit."""
    kept = {name: value for name, value in about.items() if name not in _FREE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _parts(stored: Stored) -> dict[str, Any]:
    """The validated fields of a `Detector`; raise `Forged` for the first that breaks its rule."""
    arrays, about = stored
    if about.get("name") not in DEPLOYED:
        raise Forged(
            f"it is of the kind '{about.get('name')}', which this version does not deploy (it "
            f"deploys {', '.join(DEPLOYED)})"
        )
    try:
        facts = Description.model_validate_json(json.dumps(about))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        value = repr(first["input"])
        value = value if len(value) <= 60 else value[:57] + "..."
        raise Forged(f"its {name} is {value}; {reason}" if name else reason) from error
    fields = {name: getattr(facts, name) for name in Description.model_fields}
    try:
        _check_weights(arrays, facts.model["blocks"], facts.model["width"])
        own = {name: array for name, array in arrays.items() if not name.startswith(_PREFIXES)}
        method = METHODS[facts.name]().restore(own)
        method.calibration_ = fields.pop("calibration")
        fields |= {"method": method, "beliefs": None, "distance": None}
        if "beliefs.coef" in arrays:
            fields["beliefs"] = from_arrays(Beliefs, arrays, "beliefs.")
        if "distance.layer" in arrays:
            fields["distance"] = from_arrays(Distance, arrays, "distance.")
        if facts.pre_answer is not None:
            beside = "pre_answer.distance."
            mine = {n: array for n, array in arrays.items() if not n.startswith(beside)}
            distance = from_arrays(Distance, arrays, beside) if f"{beside}layer" in arrays else None
            more = dict(facts.pre_answer) | {"distance": distance}
            fields["pre_answer"] = from_arrays(PreAnswerProbe, mine, "pre_answer.", **more)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Forged(f"its parts cannot be put together again ({in_a_line(error)})") from error
    return fields


def _check_weights(arrays: dict[str, np.ndarray], blocks: int, width: int) -> None:
    """Raise `Forged` if an array has another shape or other values than its name allows."""
    count = len(np.atleast_1d(arrays.get("layers", 0)))
    for name, array in arrays.items():
        part, _, own = name.rpartition(".")
        directions = len(np.atleast_1d(arrays.get(f"{part}.variances", 0)))
        shape = {
            "coef": (count, width), "intercept": (count,), "weights": (3,), "range": (2,),
            "layers": (count,), "beliefs.coef": (blocks, width), "beliefs.intercept": (blocks,),
            "pre_answer.coef": (width,), "gate": (width,), "mean": (width,), "scale": (width,),
            "directions": (directions, width), "variances": (directions,), "seen": array.shape[:1],
        }  # fmt: skip
        wanted = shape.get(name, () if name in _NUMBERS else shape.get(own, ()))
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise Forged(f"the weights '{name}' are not all finite numbers")
        if array.shape != wanted:
            raise Forged(f"'{name}' has an array of the shape {array.shape}, and not {wanted}")
        if own in ("layer", "layers", "gate_layer"):
            for layer in np.ravel(array):
                if layer != int(layer) or not 1 <= layer <= blocks:
                    raise Forged(f"'{name}' is at layer {layer}, and the model has {blocks} layers")
        if own in ("variances", "scale", "rest", "temperature") and not (array > 0).all():
            raise Forged(f"'{name}', a variance or scale, is not above 0")
        if own == "seen" and not (len(array) and _rises(array)):
            raise Forged(f"'{name}', the distances of training answers, do not rise")
        if own == "samples" and not 2 <= array <= 1000:
            raise Forged(f"'{name}' is {array}; 2 to 1000 answers are drawn")


def verify_detector(folder: Path, *, deep: bool = False) -> Iterator[Checked]:
    """Check description, weights and card of a detector; `deep` loads it.

    What loading refuses, such as a forged evaluation, fails here with the same message.
    """
    again, at = "get the folder again, or train the detector again", ABOUT
    try:
        about = read_folder(folder).about
        yield Checked(name=ABOUT, note=f"format {FORMAT}, checksum as written")
        yield Checked(name=WEIGHTS, note=f"the file that {ABOUT} was written for")
        if deep:
            at = "fields"
            load_folder(folder)
            number = about["evaluation"].get("auroc")
            yield Checked(name=at, note=f"every field keeps its rule; held-out AUROC {number}")
            yield Checked(name="parts", note="their shapes are those of the model")
    except UserError as error:  # the reason, without the folder's name and the advice
        reason = str(error).split(": ", 1)[-1].split(". Get")[0]
        yield Checked(name=at, wrong=reason, do=again)
        return
    if not (folder / CARD).is_file():
        yield Checked(name=CARD, wrong="it is missing", do="save the detector again")
    else:
        yield Checked(name=CARD, note="not under a checksum: it may be edited")


# --- The hub ---


def load_from(place: str | Path, *, revision: str | None = None) -> dict[str, Any]:
    """Read the fields of a `Detector` from a folder, or from a hub repository by its cache.

    A damaged file would stay in the cache and be refused for ever, so it is downloaded once more.
    """
    folder, name = user_path(place), str(place)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return load_folder(folder)
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, name, revision=revision, allow_patterns=list(FILES))
    try:
        try:
            return load_folder(Path(fetch()))
        except UserError:
            return load_folder(Path(fetch(force_download=True)))
    except UserError:
        raise
    except Exception as error:  # a malformed reply can raise any error of the library
        raise UserError(
            f"There is no folder '{place}', and the hub gave no repository of that name: "
            f"{in_a_line(error)}"
        ) from error


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """Check a detector's folder and upload it to the hub; return the repository's address."""
    load_folder(folder)  # refuses a folder that could not be loaded again
    from huggingface_hub import HfApi

    from anchorscope.detect.card import public

    stored, api = read_folder(folder), HfApi()
    free = ("kind", "format", "sha256", "checksum")
    about = {name: value for name, value in stored.about.items() if name not in free}
    about["model"] = public(about["model"])
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        with TemporaryDirectory() as copy:
            card = (folder / CARD).read_text(encoding="utf-8")
            write_folder(Path(copy), Stored(stored.tensors, about), card)
            api.upload_folder(
                repo_id=repository,
                folder_path=copy,
                allow_patterns=list(FILES),
                commit_message="A detector of wrong answers",
            )
    except Exception as error:  # as above
        raise UserError(
            f"'{repository}' could not be written: {in_a_line(error)} Log in with "
            "`hf auth login`, and give org/name."
        ) from error
    return f"{api.endpoint}/{repository}"
