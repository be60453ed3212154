"""The rules of detector.json: a checksum vouches that a file is whole, not that it makes sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from anchorscope.detect.threshold import Promise
from anchorscope.errors import CONTROLS


class Forged(Exception):
    """Says what is wrong with a detector's folder."""


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
_Layer = Annotated[int, Field(ge=1, le=10_000)]
_Fact = Annotated[Any, AfterValidator(_fact)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Model(_Part):
    name: _Name
    source: _Name | None = None
    adapter: _Name | None = None
    revision: _Name | None = None
    weights: _Name
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    blocks: _Layer
    width: int = Field(ge=1, le=1 << 20)


class _Prompt(_Part):
    style: Literal["chat", "text", "given"]
    shots: int = Field(ge=0, le=1000)
    max_tokens: int = Field(ge=1, le=4096)
    finder: str = Field(max_length=100)


class _Calibration(_Part):
    slope: float = Field(ge=0, le=1e12)  # a line that falls would call right answers wrong
    intercept: float = Field(ge=-1e12, le=1e12)
    prior: float = Field(ge=-1e3, le=1e3)


class _Steps(_Part):
    scores: list[float] = Field(min_length=1, max_length=100_000)
    probabilities: list[_Share]
    prior: float = Field(ge=-1e3, le=1e3)

    @model_validator(mode="after")
    def _rise(self) -> _Steps:
        same = len(self.scores) == len(self.probabilities)
        if not same or any(sorted(part) != part for part in (self.scores, self.probabilities)):
            raise ValueError("scores and probabilities are to rise together")
        return self


class _TrainedOn(_Part):
    datasets: list[_Name] = Field(min_length=1, max_length=10_000)
    answers: _Count
    wrong: _Count

    @model_validator(mode="after")
    def _counts(self) -> _TrainedOn:
        if self.wrong > self.answers:
            raise ValueError(f"{self.wrong} of {self.answers} are wrong")
        return self


class _Method(_Part):
    layer: _Layer | None = None
    layers: list[_Layer] | None = None
    C: float | None = None


class _Evaluation(_Part):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Fact] = Field(init=False)  # n, ece, brier and others
    auroc: _Share | None = None
    auroc_low: _Share | None = None
    auroc_high: _Share | None = None

    @model_validator(mode="after")
    def _interval(self) -> _Evaluation:
        low, high = self.auroc_low, self.auroc_high
        if low is not None and high is not None and low > high:
            raise ValueError(f"the AUROC has an interval from {low} to {high}")
        return self


class _PreAnswer(_Part):
    layer: _Layer
    threshold: _Share
    calibration: _Calibration
    evaluation: _Evaluation


class _Promise(_Part):
    risk: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    entities: _Count
    accepted: _Count
    wrong: _Count

    @model_validator(mode="after")
    def _kept(self) -> _Promise:
        if not self.wrong <= self.accepted <= self.entities:
            raise ValueError(
                f"{self.accepted} of {self.entities} answers are accepted, "
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


class Description(_Part):
    """detector.json: what `Detector.save` writes, as far as a reader relies on it."""

    name: _Name
    model: _Model
    prompt: _Prompt
    threshold: _Share
    calibration: _Calibration | _Steps
    calibrated_on: str = Field(max_length=100_000)
    trained_on: _TrainedOn
    examples: list[_Example] = Field(max_length=100_000)  # none: prompts were given
    evaluation: _Evaluation
    licence: dict[_Name, _Fact]
    method: _Method
    band: list[_Share] | None = Field(default=None, min_length=2, max_length=2)
    before: _PreAnswer | None = None
    promise: _Promise | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Description:
        if self.band is not None and not self.band[0] <= self.threshold <= self.band[1]:
            raise ValueError(
                f"its band is {self.band}, which does not hold its threshold {self.threshold}"
            )
        layers = [self.method.layer, *(self.method.layers or ()), self.before and self.before.layer]
        for layer in layers:
            if layer is not None and layer > self.model.blocks:
                raise ValueError(
                    f"it reads layer {layer}, and the model has {self.model.blocks} layers"
                )
        return self


def check_description(about: Mapping[str, Any]) -> None:
    """Raise with the first field that breaks its rule: its name, its value and the rule."""
    try:
        Description.model_validate(about)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        if not name:
            raise Forged(reason) from error
        if isinstance(first["input"], dict):  # of the part as a whole, or of a field it lacks
            raise Forged(f"its {name}: {reason}") from error
        value = repr(first["input"])
        value = value if len(value) <= 60 else value[:57] + "..."
        raise Forged(f"its {name} is {value}; {reason}") from error
