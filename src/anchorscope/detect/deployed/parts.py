"""The parts of a detector, restored from its folder and tried on a made-up answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.description import Forged
from anchorscope.detect.deployed.located import Entity, LocatedAnswer, material_of, unknown_answer
from anchorscope.detect.deployed.pre_answer import PreAnswerProbe
from anchorscope.detect.deployed.saved import Stored, read_checked, refused
from anchorscope.detect.distance import Distance
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.method import Isotonic, Method, Platt
from anchorscope.records import Span

_PREFIXES = ("beliefs.", "distance.", "before.")  # of the weights that are not the method's own
# What numpy and Python say of arrays and values that do not belong together.
_MISFITS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip


class Parts(NamedTuple):
    """What a detector computes with; None where a folder holds no such part."""

    method: Method
    beliefs: Beliefs | None
    distance: Distance | None
    pre_answer: PreAnswerProbe | None


def load_parts(folder: Path) -> tuple[Stored, Parts]:
    """What a detector's folder holds, and its parts; a folder that makes no sense is refused."""
    stored = read_checked(folder)
    model = stored.about["model"]
    try:
        parts = _restored(stored)
        _check_works(parts, blocks=model["blocks"], width=model["width"])
    except Forged as error:
        raise refused(folder, str(error)) from error
    return stored, parts


def _restored(stored: Stored) -> Parts:
    tensors, about = stored
    own = {name: array for name, array in tensors.items() if not name.startswith(_PREFIXES)}
    try:
        method = METHODS[about["name"]]().restore(own, about["method"])
        steps = about["calibration"]
        method.calibration_ = Isotonic(**steps) if "scores" in steps else Platt(**steps)
        return Parts(
            method=method,
            beliefs=Beliefs.restore(tensors),
            distance=Distance.restore(tensors),
            pre_answer=PreAnswerProbe.restore(tensors, about.get("before")),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Forged(f"its parts cannot be put together again ({error!r})") from error


def _check_works(parts: Parts, *, blocks: int, width: int) -> None:
    """Raise where the parts give a made-up answer no probability: they do not fit together.

    Nothing is allocated that the files do not hold already.
    """
    method, beliefs, distance, pre_answer = parts
    state = np.zeros((1, width), dtype=np.float32)
    try:
        if distance is not None:
            _check_distance(distance, blocks, width)
            distance.place(state)
        states = {("clean", layer): state for layer in method.layers()}
        score = method.decision_function(material_of([_MADE_UP], states))
        probability = method.calibration_.probability(score)
        _must(probability.shape == (1,) and 0 <= probability[0] <= 1, "no probability comes out")
        if beliefs is not None:
            # Before there is a state for every layer: that takes as much memory as the file says.
            shape = beliefs.coef.shape
            _must(shape == (blocks, width), f"its beliefs have the shape {shape}")
            _must(1 <= beliefs.gate_layer <= blocks, "the gate is at no layer")
            every = np.zeros((1, blocks, width), dtype=np.float32)
            _must(beliefs.wrong(every).shape == (1, blocks), "the beliefs are of another model")
            beliefs.question_anchored(every)
        if pre_answer is not None:
            _must(pre_answer.probability(state).shape == (1,), "no warning comes out")
            if pre_answer.distance is not None:
                _check_distance(pre_answer.distance, blocks, width)
                pre_answer.distance.place(state)
    except _MISFITS as error:
        reason = f"{type(error).__name__}: {str(error)[:60]}"
        raise Forged(f"its parts do not fit together ({reason})") from error


_MADE_UP = LocatedAnswer(
    question="Who?",
    answer=unknown_answer("Me", (0,), 0, log_prob=-1.0),
    entities=(Entity(span=Span(0, 2), tokens=(0,), sentence=Span(0, 2)),),
)


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


def _must(holds: bool, reason: str) -> None:
    """Raise where it does not hold; an assert would be gone under `python -O`."""
    if not holds:
        raise Forged(reason)
