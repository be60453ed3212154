"""What a detector's folder may say: a checksum vouches for its writer's words, not for their sense.

Every field has a rule, sizes come before reading, and what was read is tried on a made-up answer
before anybody relies on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anchorscope.detect.deployed.trained import Trained
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.material import Arrays, Material, Text

MOST_BYTES = {".json": 64 << 20, ".safetensors": 4 << 30}
# What numpy and Python say of arrays and values that do not belong together.
_MISFITS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip
_DTYPES = ("float16", "bfloat16", "float32", "float64")


class Forged(Exception):
    """Says what is wrong with a folder."""


class Rule(NamedTuple):
    """What a field must be, and how that is said."""

    fits: Callable[[Any], bool]
    said: str


def _number(low: float, high: float) -> Rule:
    def fits(value: Any) -> bool:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return plain and low <= value <= high  # which no NaN and no infinity is

    return Rule(fits, f"a number from {low:g} to {high:g}")


def _whole(low: int, high: int) -> Rule:
    number = _number(low, high)
    return Rule(
        lambda value: isinstance(value, int) and number.fits(value),
        f"a whole number from {low} to {high}",
    )


def _words(most: int, *, least: int = 0) -> Rule:
    return Rule(
        lambda value: isinstance(value, str) and least <= len(value) <= most,
        f"a text of {least} to {most} characters",
    )


def _none_or(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.fits(value), f"{rule.said}, or null")


def _list_of(rule: Rule, *, least: int, most: int) -> Rule:
    return Rule(
        lambda value: (
            isinstance(value, list) and least <= len(value) <= most and all(map(rule.fits, value))
        ),
        f"a list of {least} to {most}, each {rule.said}",
    )


def _one_of(choices: tuple[str, ...]) -> Rule:
    return Rule(lambda value: value in choices, f"one of {', '.join(choices)}")


_FACT = Rule(
    lambda value: value is None or _words(1000).fits(value) or _number(-1e12, 1e12).fits(value),
    "a finite number, a short text or null",
)
_LINE = Rule(
    lambda value: (
        isinstance(value, dict)
        and _number(0, 1e12).fits(value.get("slope"))
        and _number(-1e12, 1e12).fits(value.get("intercept"))
        and _number(-1e3, 1e3).fits(value.get("prior"))
    ),
    "a line that does not fall: slope, intercept and prior",
)
_NAME, _COUNT = _words(1000, least=1), _whole(0, 10**9)
RULES: dict[str, Rule] = {
    "name": Rule(lambda value: isinstance(value, str) and value in METHODS, "a known detector"),
    "model.name": _NAME,
    "model.source": _none_or(_NAME),
    "model.adapter": _none_or(_NAME),
    "model.revision": _none_or(_NAME),
    "model.weights": _NAME,
    "model.dtype": _one_of(_DTYPES),
    "model.blocks": _whole(1, 10_000),
    "model.width": _whole(1, 1 << 20),
    "prompt.style": _one_of(("chat", "text")),
    "prompt.shots": _whole(0, 1000),
    "prompt.max_tokens": _whole(1, 4096),
    "prompt.finder": _words(100),
    "threshold": _number(0, 1),
    "calibration": _LINE,
    "calibrated_on": _words(100_000),
    "trained_on.datasets": _list_of(_NAME, least=1, most=10_000),
    "trained_on.answers": _COUNT,
    "trained_on.wrong": _COUNT,
    "band": _none_or(_list_of(_number(0, 1), least=2, most=2)),
    "before.threshold": _number(0, 1),
    "before.calibration": _LINE,
    "promise.risk": _number(0, 1),
    "promise.confidence": _number(0, 1),
    "promise.answers": _COUNT,
    "promise.accepted": _COUNT,
    "promise.wrong": _COUNT,
}
_MAY_MISS = ("model.source", "model.adapter", "model.revision", "band", "before", "promise")
_EXAMPLES = {
    "question": _words(100_000, least=1),
    "prompt_ids": _list_of(_whole(0, 1 << 31), least=1, most=1 << 20),
}


def check_size(file: Path) -> None:
    """Raise where a file is larger than a detector's can be."""
    most = MOST_BYTES[file.suffix]
    if file.stat().st_size > most:
        raise Forged(f"{file.name} has {file.stat().st_size} bytes, and {most} are read at most")


def check_about(about: Mapping[str, Any]) -> None:
    """Raise where a field of the description is missing or is not what it may be."""
    for name, rule in RULES.items():
        head, _, tail = name.partition(".")
        part = about.get(head)
        if part is None and head in _MAY_MISS:
            continue
        if tail and not isinstance(part, dict):
            raise Forged(f"its {head} is {_short(part)}; accepted: an object")
        _check(name, part.get(tail) if tail and isinstance(part, dict) else part, rule, name)
    examples = about.get("examples")
    if not isinstance(examples, list) or not 0 < len(examples) <= 100_000:
        raise Forged("its examples are no list of prompts")
    for example in examples:
        for name, rule in _EXAMPLES.items():
            value = example.get(name) if isinstance(example, dict) else None
            _check(f"example's {name}", value, rule)
    for part in ("evaluation", "licence"):
        if not isinstance(about.get(part), dict):
            raise Forged(f"its {part} is {_short(about.get(part))}; accepted: an object")
        for name, value in about[part].items():
            rule = _none_or(_number(0, 1)) if name.startswith("auroc") else _FACT
            _check(f"{part}.{name}", value, rule)
    _check_rest(about)


def _check(said: str, value: Any, rule: Rule, name: str = "") -> None:
    if value is None and name in _MAY_MISS:
        return
    if not rule.fits(value):
        raise Forged(f"its {said} is {_short(value)}; accepted: {rule.said}")


def _check_rest(about: Mapping[str, Any]) -> None:
    """What a method and other parts say of themselves: finite numbers, layers the model has."""
    if not isinstance(about.get("method"), dict):
        raise Forged(f"its method is {_short(about.get('method'))}; accepted: an object")
    layer = _whole(1, about["model"]["blocks"])
    for part, content in about.items():
        for name, value in _leaves(content, part):
            if name in ("layer", "layers"):
                _check(f"{part}'s {name}", value, layer)
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
    try:
        needed = trained.method.needs()
        if any(not 1 <= layer <= blocks for layers in needed.values() for layer in layers):
            raise Forged(f"it reads layers that a model of {blocks} has not")
        states = {(name, k): _zeros(width) for name, layers in needed.items() for k in layers}
        made_up = _made_up(states, blocks)
        trained.method.passes(made_up)
        _, probability = trained.score_of(made_up)
        _must(probability.shape == (1,) and 0 <= probability[0] <= 1, "no probability comes out")
        if trained.beliefs is not None:
            belief = trained.beliefs.wrong(np.zeros((1, blocks, width), dtype=np.float32))
            trained.beliefs.question_anchored(np.zeros((1, blocks, width), dtype=np.float32))
            _must(belief.shape == (1, blocks), "the beliefs are of another model")
            _must(1 <= trained.beliefs.gate_layer <= blocks, "the gate is at no layer")
        if trained.before is not None:
            warned = trained.before.probability(_zeros(width))
            _must(warned.shape == (1,), "no warning comes out")
        trained.distance_of(np.zeros((1, blocks, width), dtype=np.float32))
    except _MISFITS as e:
        raise Forged(f"its parts do not fit together ({type(e).__name__}: {_short(e)})") from e


def _must(holds: bool, said: str) -> None:
    """Raise where it does not hold; an assert would be gone under `python -O`."""
    if not holds:
        raise Forged(said)


def _zeros(width: int) -> np.ndarray:
    return np.zeros((1, width), dtype=np.float32)


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
