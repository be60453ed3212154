"""What an intervention does to a probe's prediction: ΔP, flips, and each sample's pathway."""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
from scipy.special import expit

from anchorscope.config import Delta
from anchorscope.errors import UserError, unknown
from anchorscope.probes.readings import Readings
from anchorscope.records import Mode


def prediction(clean_logit: np.ndarray) -> np.ndarray:
    """ŷ of each clean logit: 1.0 (wrong) above zero, else 0.0 (right); NaN stays NaN."""
    clean = np.asarray(clean_logit, dtype=np.float64)
    return np.where(np.isnan(clean), np.nan, (clean > 0).astype(np.float64))


def flips(clean_logit: np.ndarray, other_logit: np.ndarray) -> np.ndarray:
    """1.0 where the intervention changes the prediction, 0.0 where not, NaN where unknown."""
    return np.abs(prediction(clean_logit) - prediction(other_logit))


def delta_p(
    clean_logit: np.ndarray, other_logit: np.ndarray, *, delta: Delta = "points"
) -> np.ndarray:
    """The change of the originally predicted class ŷ, in the shape of the logits.

    "points": 100 · (P'(ŷ) − P(ŷ)); "relative": the same divided by P(ŷ); "logit": the change of
    the logit, signed towards ŷ. Negative: the intervention took support away.
    """
    if delta not in get_args(Delta):
        raise unknown("delta", delta, get_args(Delta))
    towards = np.where(prediction(clean_logit) == 1, 1.0, -1.0)
    before = towards * np.asarray(clean_logit, dtype=np.float64)
    after = towards * np.asarray(other_logit, dtype=np.float64)
    if delta == "logit":
        return after - before
    points = 100 * _expit_difference(after, before)
    return points if delta == "points" else points / expit(before)


def _expit_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """σ(x) − σ(y), exact to rounding also where both are close to 0 or to 1.

    Subtracting would lose every digit there: σ(40) and σ(50) are the same number.
    """
    high, low = np.maximum(x, y), np.minimum(x, y)
    return np.sign(x - y) * expit(high) * expit(-low) * -np.expm1(low - high)


class Roles(NamedTuple):
    """Which probe gives the group, and which the effect."""

    group: str
    effect: str


# Paper mode reads both from one probe, so noise that flips a sample also counts as its effect.
# In strict mode the two share no training question.
ROLES: dict[Mode, Roles] = {"paper": Roles("paper", "paper"), "strict": Roles("a", "b")}


def pathways(readings: Readings, *, probe: str) -> np.ndarray:
    """The pathway one probe gives each sample, [question, layer]: "Q" where the knockout flips
    its prediction, "A" where not, None where there is no knocked-out state.
    """
    flipped = flips(readings.of(probe), readings.of(probe, "knockout"))
    named = np.where(flipped == 1, "Q", "A").astype(object)
    named[np.isnan(flipped)] = None
    return named


def regroup(named: np.ndarray, grouping: str) -> np.ndarray:
    """Pathways [question, layer] under another grouping than each layer's own.

    `fixed:k` gives every layer the groups of layer k; `majority` makes a sample Q where it is Q
    in more than half of the layers.
    """
    layers = named.shape[1]
    layer = check_grouping(grouping, layers)
    if grouping == "per-layer":
        return named
    if layer is not None:
        chosen = named[:, layer - 1]
    else:
        chosen = np.where((named == "Q").mean(axis=1) > 0.5, "Q", "A").astype(object)
        chosen[[row[0] is None for row in named]] = None
    return np.repeat(chosen[:, None], layers, axis=1)


def check_grouping(grouping: str, layers: int) -> int | None:
    """The layer k of `fixed:k`, None for the other groupings; an error for what is neither."""
    if grouping in ("per-layer", "majority"):
        return None
    name, _, number = grouping.partition(":")
    if name == "fixed" and number.isdigit() and 1 <= int(number) <= layers:
        return int(number)
    raise UserError(
        f"Unknown grouping '{grouping}'. Accepted: per-layer, majority, fixed:k with k from 1 "
        f"to {layers}."
    )
