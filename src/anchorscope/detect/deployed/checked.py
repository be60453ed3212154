"""Validate a detector's folder: a checksum vouches for its writer's words, not for their sense.

Every field has a rule, sizes come before reading, nothing is allocated that the files do not hold
already, and what was read is tried on a made-up answer before it is relied on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from anchorscope.detect.deployed.trained import Trained
from anchorscope.detect.distance import Distance
from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.detect.threshold import Promise
from anchorscope.errors import CONTROLS

MOST_BYTES = {".json": 64 << 20, ".safetensors": 4 << 30}
# What numpy and Python say of arrays and values that do not belong together.
_MISFITS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip


class Forged(Exception):
    """Says what is wrong with a folder."""


def _no_controls(text: str) -> str:
    if CONTROLS.search(text):
        raise ValueError("a control character, which would act on a terminal")
    return text


def _fact(value: Any) -> Any:
    if not (value is None or isinstance(value, str | int | float)) or isinstance(value, bool):
        raise ValueError("a number, a text or null is accepted")
    if isinstance(value, str) and len(_no_controls(value)) > 1000:
        raise ValueError("a text of 1000 characters at most is accepted")
    if isinstance(value, int | float) and not abs(value) <= 1e12:  # which no NaN is
        raise ValueError("a finite number is accepted")
    return value


_Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_no_controls)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=10**9)]
_Facts = dict[_Name, Annotated[Any, AfterValidator(_fact)]]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Model(_Part):
    name: _Name
    source: _Name | None = None
    adapter: _Name | None = None
    revision: _Name | None = None
    weights: _Name
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    blocks: int = Field(ge=1, le=10_000)
    width: int = Field(ge=1, le=1 << 20)


class _Prompt(_Part):
    style: Literal["chat", "text"]
    shots: int = Field(ge=0, le=1000)
    max_tokens: int = Field(ge=1, le=4096)
    finder: str = Field(max_length=100)


class _Line(_Part):
    slope: float = Field(ge=0, le=1e12)  # a line that falls would call right answers wrong
    intercept: float = Field(ge=-1e12, le=1e12)
    prior: float = Field(ge=-1e3, le=1e3)


class _TrainedOn(_Part):
    datasets: list[_Name] = Field(min_length=1, max_length=10_000)
    answers: _Count
    wrong: _Count

    @model_validator(mode="after")
    def _counts(self) -> _TrainedOn:
        if self.wrong > self.answers:
            raise ValueError(f"{self.wrong} of {self.answers} are wrong")
        return self


class _Before(_Part):
    threshold: _Share
    calibration: _Line


class _Promise(_Part):
    risk: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    answers: _Count
    accepted: _Count
    wrong: _Count

    @model_validator(mode="after")
    def _kept(self) -> _Promise:
        if not self.wrong <= self.accepted <= self.answers:
            raise ValueError(
                f"{self.accepted} of {self.answers} answers are accepted, "
                f"{self.wrong} of them wrong"
            )
        if not Promise(**self.model_dump()).supported:
            raise ValueError(
                f"{self.wrong} of {self.accepted} accepted answers are wrong, which does not "
                f"support a risk of {self.risk:g} with a confidence of {self.confidence:g}"
            )
        return self


class _Example(_Part):
    question: str = Field(min_length=1, max_length=100_000)
    prompt_ids: list[Annotated[int, Field(ge=0, le=1 << 31)]] = Field(
        min_length=1, max_length=1 << 20
    )
    dataset: str = Field(default="", max_length=1000)


class _Aurocs(_Part):
    auroc: _Share | None = None
    auroc_low: _Share | None = None
    auroc_high: _Share | None = None

    @model_validator(mode="after")
    def _interval(self) -> _Aurocs:
        low, high = self.auroc_low, self.auroc_high
        if low is not None and high is not None and low > high:
            raise ValueError(f"the AUROC lies in an interval from {low} to {high}")
        return self


class _About(_Part):
    """detector.json: what `save_trained` writes, as far as a reader relies on it."""

    name: _Name
    model: _Model
    prompt: _Prompt
    threshold: _Share
    calibration: _Line
    calibrated_on: str = Field(max_length=100_000)
    trained_on: _TrainedOn
    examples: list[_Example] = Field(min_length=1, max_length=100_000)
    evaluation: _Facts
    licence: _Facts
    method: dict[str, Any]
    band: list[_Share] | None = Field(default=None, min_length=2, max_length=2)
    before: _Before | None = None
    promise: _Promise | None = None


_ABOUT, _AUROCS = TypeAdapter(_About), TypeAdapter(_Aurocs)


def check_size(file: Path) -> None:
    """Raise where a file is larger than a detector's can be."""
    most = MOST_BYTES[file.suffix]
    if file.stat().st_size > most:
        raise Forged(f"{file.name} has {file.stat().st_size} bytes, and {most} are read at most")


def check_about(about: Mapping[str, Any]) -> None:
    """Raise where a field of the description is missing or is not what it may be."""
    _validate(_ABOUT, about)
    _validate(_AUROCS, about["evaluation"], "evaluation")
    band, threshold = about.get("band"), about["threshold"]
    if band is not None and not band[0] <= threshold <= band[1]:
        raise Forged(f"its band is {band}, which does not hold its threshold {threshold}")
    _check_rest(about)


def _validate(rules: TypeAdapter[Any], content: Any, place: str = "") -> None:
    """Raise with the first field that breaks its rule: its name, its value and the rule."""
    try:
        rules.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, [*([place] if place else []), *first["loc"]]))
        said = first["msg"].removeprefix("Value error, ")
        if isinstance(first["input"], dict):  # of the part as a whole, or of a field it lacks
            raise Forged(f"its {name}: {said}") from error
        raise Forged(f"its {name} is {_short(first['input'])}; {said}") from error


def _check_rest(about: Mapping[str, Any]) -> None:
    """What a method and other parts say of themselves: finite numbers, layers the model has."""
    blocks = about["model"]["blocks"]
    for part, content in about.items():
        for name, value in _leaves(content, part):
            if name in ("layer", "layers"):
                if type(value) is not int or not 1 <= value <= blocks:
                    raise Forged(f"its {part}'s {name} is {_short(value)}; the model has {blocks}")
            elif isinstance(value, float) and not math.isfinite(value):
                raise Forged(f"its {part}'s {name} is {value}; accepted: a finite number")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value in nested objects and lists, with the name of the field it is in."""
    if isinstance(value, dict):
        for key, of in value.items():
            yield from _leaves(of, key)
    elif isinstance(value, list):
        for of in value:
            yield from _leaves(of, name)
    else:
        yield name, value


def check_tensors(tensors: Mapping[str, np.ndarray]) -> None:
    """Raise where an array holds anything but finite numbers."""
    for name, array in tensors.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise Forged(f"the weights '{name}' are not all finite numbers")


def check_works(trained: Trained) -> None:
    """Raise where the detector gives a made-up answer no probability: its parts do not fit."""
    blocks, width = int(trained.model["blocks"]), int(trained.model["width"])
    state = np.zeros((1, width), dtype=np.float32)
    try:
        needed = trained.method.needs()
        if any(not 1 <= layer <= blocks for layers in needed.values() for layer in layers):
            raise Forged(f"it reads layers that a model of {blocks} has not")
        made_up = _made_up({(name, k): state for name, ks in needed.items() for k in ks}, blocks)
        if trained.distance is not None:
            _check_distance(trained.distance, blocks, width)
            trained.distance.place(state)
        _, probability = trained.score_of(made_up)
        _must(probability.shape == (1,) and 0 <= probability[0] <= 1, "no probability comes out")
        if trained.beliefs is not None:
            # Before there is a state for every layer: that takes as much memory as the file says.
            shape = trained.beliefs.coef.shape
            _must(shape == (blocks, width), f"its beliefs have the shape {shape}")
            states = np.zeros((1, blocks, width), dtype=np.float32)
            belief = trained.beliefs.wrong(states)
            trained.beliefs.question_anchored(states)
            _must(belief.shape == (1, blocks), "the beliefs are of another model")
            _must(1 <= trained.beliefs.gate_layer <= blocks, "the gate is at no layer")
        if trained.before is not None:
            warned = trained.before.probability(state)
            _must(warned.shape == (1,), "no warning comes out")
    except _MISFITS as e:
        raise Forged(f"its parts do not fit together ({type(e).__name__}: {_short(e)})") from e


def _check_distance(distance: Distance, blocks: int, width: int) -> None:
    """Raise where a distance is none: at a layer, over variances above 0, in rising order."""
    _must(1 <= distance.layer <= blocks, f"its distance is at layer {distance.layer}")
    shapes = [a.shape for a in (distance.mean, distance.scale, distance.directions[0])]
    _must(shapes == [(width,)] * 3, f"its distance has arrays of the shapes {shapes}")
    spread = np.append(distance.variances, distance.rest)
    _must(bool((spread > 0).all()), "its distance has a variance that is not above 0")
    _must(bool((distance.scale > 0).all()), "its distance has a scale that is not above 0")
    seen = distance.seen
    rising = seen.ndim == 1 and len(seen) > 0 and bool((np.diff(seen) >= 0).all())
    _must(rising, "its distances of training answers do not rise")


def _must(holds: bool, said: str) -> None:
    """Raise where it does not hold; an assert would be gone under `python -O`."""
    if not holds:
        raise Forged(said)


def _made_up(states: dict[tuple[str, int], np.ndarray], blocks: int) -> Material:
    text = Text(
        id="0",
        question="Who?",
        answer="Me",
        log_probs=(-1.0,),
        exact_answer=(0,),
        first_entropy=1.0,
    )
    bank = Arrays(states, layers=blocks)
    return Material(name="", texts=(text,), z=np.array([-1]), bank=bank, rows=np.arange(1))


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
