"""The one-mechanism null: the gap between groups that one law for all samples would give.

The null says: every sample follows the same law, knocked-out logit = line(clean logit) + noise,
and nothing else tells samples apart. It is simulated from the observed clean logits, the fitted
lines, and Gaussian noise; the simulated logits are then grouped exactly as the mode groups.

Strict mode takes the group from probe a and the effect from probe b, so the noise is a pair, and
everything depends on the correlation of the two. The probes share no training question, but they
read the *same states*: if the knockout jolts a state at random, both see that jolt, each along its
own direction. Independent noise would therefore make the band too narrow: any jolt would pass for
a second pathway. The other extreme, the correlation of the observed residuals, takes the very
thing in question for granted: if samples do differ in how much they need the question, that is
what both probes see, and the null would simulate it. Under one mechanism the noise is a jolt in no
special direction, and how far two probes agree on such a jolt can be measured: it is the
correlation of their residuals under the neutral control. The upper end of its interval is
what is drawn, so that the control's own error cannot narrow the band. Without a control the
observed correlation is taken: the widest band, which errs towards one mechanism.

The law is that of `one_law`: relation, kind of question and the clean belief are part of it, so
that what they give is inside the band.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import expit

from anchorscope.pathways.effects import Delta, prediction
from anchorscope.pathways.one_law import Fit, Known, Law, correlation, one_law, upper_correlation
from anchorscope.stats.intervals import percentile_interval
from anchorscope.stats.kept import may_keep, normals

_BLOCK = 1_000_000  # numbers of noise at a time
_CACHED = 32_768  # simulated logits at a time: a few arrays of them fit into a core's cache
UNITS: tuple[Delta, ...] = ("points", "logit")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The mean effect of Q less that of A, beside what one mechanism would give."""

    value: float  # NaN where a group is empty
    low: float  # the null's 95 % band; NaN where it never has two groups
    high: float
    p: float  # how often one mechanism gives a gap at least as deep
    n_q: int
    n_a: int

    @property
    def beyond(self) -> bool:
        """Whether Q falls further below A than one mechanism lets it."""
        return bool(self.value < self.low)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Logits [question] of the probe that groups and of the probe that measures, without NaN."""

    group_clean: np.ndarray
    group_knockout: np.ndarray
    effect_clean: np.ndarray
    effect_knockout: np.ndarray
    known: Known  # groups are compared within its predicted classes, each with a law of its own
    law: Law = "curve"

    @property
    def flipped(self) -> np.ndarray:
        return (self.group_clean > 0) != (self.group_knockout > 0)

    def within(self, name: Literal["all", "both"]) -> Pair:
        """All samples together ("all"), or compared within the class that the effect's probe
        predicts ("both").
        """
        if name == "all":
            return replace(self, known=self.known.together())
        return replace(self, known=replace(self.known, predicted=prediction(self.effect_clean)))


def gaps(
    pair: Pair,
    *,
    seed: int,
    simulations: int = 500,
    points: Delta = "points",
    shared: float | None = None,
    laws: tuple[Fit, Fit] | None = None,
) -> dict[Delta, Gap]:
    """The gap in points and in logits, each with its null band.

    `points` may be "relative": the unit that the ΔP of the run counts in. `shared` is the
    correlation of the two probes' noise (`shared_by_laws`); None takes the observed one.
    Within a predicted class the law is that of the class: a bend between the classes is still one
    mechanism. `laws`: what the logits of group and effect follow, where it is known already.
    """
    n = len(pair.known.fold)
    if n < 3:
        return {unit: _gap(np.nan, np.array([np.nan]), pair) for unit in UNITS}
    count = _Counter(pair, points)
    observed = count.gaps(pair.group_knockout[None], pair.effect_knockout[None])
    drawn = [
        count.gaps(*simulated)
        for simulated in _simulate(pair, laws or laws_of(pair), seed, simulations, shared)
    ]
    return {
        unit: _gap(observed[unit][0], np.concatenate([d[unit] for d in drawn]), pair)
        for unit in UNITS
    }


def laws_of(pair: Pair) -> tuple[Fit, Fit]:
    """What the logits of group and effect follow."""
    group, effect = (
        one_law(getattr(pair, f"{role}_clean"), getattr(pair, f"{role}_knockout"), pair.known,
                law=pair.law)
        for role in ("group", "effect")
    )  # fmt: skip
    return group, effect


def shared_by_laws(group: Fit, effect: Fit) -> float:
    """The most that two probes' noise may go together, from what the control's logits follow."""
    return upper_correlation(correlation(group.residual, effect.residual), len(group.residual))


def _simulate(
    pair: Pair, laws: tuple[Fit, Fit], seed: int, simulations: int, shared: float | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Knocked-out logits [simulation, question] of both probes under one mechanism, in blocks."""
    group, effect = laws
    shared = correlation(group.residual, effect.residual) if shared is None else shared
    for first, second in _noise(len(pair.known.fold), seed, simulations):
        of_group = group.fitted + group.noise * first
        if shared >= 1 and group is effect:  # one probe gives both
            yield of_group, of_group
            continue
        second = shared * first + np.sqrt(1 - shared**2) * second if shared < 1 else first
        yield of_group, effect.fitted + effect.noise * second


def _noise(n: int, seed: int, simulations: int) -> Iterator[np.ndarray]:
    """Pairs of noise [2, simulation, question], as many simulations as a core's cache holds."""
    rows = max(1, _CACHED // n)
    for block in _drawn_noise(n, seed, simulations):
        for start in range(0, block.shape[1], rows):
            yield block[:, start : start + rows]


def _drawn_noise(n: int, seed: int, simulations: int) -> Iterator[np.ndarray]:
    """Pairs of noise [2, simulation, question], some simulations at a time.

    The same stream serves all layers, modes and classes: it is kept where it is short, and drawn
    again where it would fill the memory.
    """
    most = max(1, _BLOCK // n)
    blocks = [min(most, simulations - start) for start in range(0, simulations, most)]
    if not may_keep(16 * simulations * n):
        rng = np.random.default_rng(seed)
        yield from (rng.standard_normal((2, size, n)) for size in blocks)
        return
    ends = 2 * n * np.cumsum(blocks)
    for block in np.split(normals(ends[-1], seed=seed), ends[:-1]):
        yield block.reshape(2, -1, n)


class _Counter:
    """The gaps of simulations, by sums over samples: of ΔP only its changing part is multiplied.

    ΔP is `delta_p` but for its last digits: that one is exact where both probabilities are next to
    1, and takes longer.
    """

    def __init__(self, pair: Pair, points: Delta) -> None:
        classes = pair.known.predicted
        member = (classes[:, None] == np.unique(classes)).astype(np.float64)  # [question, class]
        self._clean = pair.group_clean > 0
        self._towards = np.where(pair.effect_clean > 0, 1.0, -1.0)
        before = expit(self._towards * pair.effect_clean)
        per = 100 / before if points == "relative" else np.full(len(before), 100.0)
        self._member, self._n = member, member.sum(axis=0)
        self._weights: dict[Delta, np.ndarray] = {
            "points": per[:, None] * member,
            "logit": self._towards[:, None] * member,
        }
        self._before: dict[Delta, np.ndarray] = {
            "points": (before * per)[:, None] * member,
            "logit": (self._towards * pair.effect_clean)[:, None] * member,
        }

    def gaps(
        self, group_knockout: np.ndarray, effect_knockout: np.ndarray
    ) -> dict[Delta, np.ndarray]:
        """The gap of each simulation [simulation], by unit; NaN where a group is empty."""
        flipped = ((group_knockout > 0) != self._clean).astype(np.float64)
        q = flipped @ self._member
        by_unit: dict[Delta, np.ndarray] = {}
        for unit in UNITS:
            after = effect_knockout
            if unit != "logit":
                after = _probability(self._towards * effect_knockout)
            weights, before = self._weights[unit], self._before[unit]
            total = after @ weights - before.sum(axis=0)
            in_q = (after * flipped) @ weights - flipped @ before
            by_unit[unit] = _stratified(total, in_q, q, self._n)
        return by_unit


def _probability(logits: np.ndarray) -> np.ndarray:
    """The probability of each logit, written over the logits: scipy's takes several times as long
    where numpy has the processor's vectors for the exponential.
    """
    with np.errstate(over="ignore"):  # of a probability next to 0
        np.exp(np.negative(logits, out=logits), out=logits)
    logits += 1
    return np.reciprocal(logits, out=logits)


def _stratified(total: np.ndarray, in_q: np.ndarray, q: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The mean gap over strata [simulation], each weighted by how much it says of a gap.

    Sums of the effect over all and over Q, and numbers of Q, are [simulation, stratum]; n is the
    number of samples [stratum].
    """
    a = n - q
    gap = in_q / np.maximum(q, 1) - (total - in_q) / np.maximum(a, 1)
    weight = q * a / n  # none where a group is empty
    weights = weight.sum(axis=1)
    mean = (weight * gap).sum(axis=1) / np.where(weights > 0, weights, 1)
    return np.where(weights > 0, mean, np.nan)


def _gap(value: float, drawn: np.ndarray, pair: Pair) -> Gap:
    sizes = {"n_q": int(pair.flipped.sum()), "n_a": int((~pair.flipped).sum())}
    known = drawn[~np.isnan(drawn)]
    # A null that mostly leaves one group empty has no gap to compare with: no band, no p.
    value, low, high, _ = percentile_interval(value, drawn, len(pair.known.fold))
    p = (1 + (known <= value).sum()) / (1 + len(known)) if np.isfinite(low) else np.nan
    return Gap(value=value, low=low, high=high, p=float(p), **sizes)
