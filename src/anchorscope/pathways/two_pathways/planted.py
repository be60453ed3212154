"""Two pathways planted in a run's own logits: its beliefs, its law, its noise, its share of Q.

What is planted is known, so whether strict mode shows it can be counted. In the clear case the
noise is correlated between the probes as far as it is under the control, and stays as it is. In the
run's own case (own_case.py) the probes read better with more answers to learn from (learning.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from anchorscope.pathways.humps import two_humps
from anchorscope.pathways.one_law import Known, one_law
from anchorscope.pathways.two_pathways.learning import Learning
from anchorscope.pathways.two_pathways.looks import PROBES, Logits

CLEAR = 5.0  # spreads of the noise between the humps in the clear case
STRONG = 10  # difference of BIC from which the residuals' own two humps are not taken for noise
SHARES = (0.1, 0.5)  # the share of Q that is planted lies between these


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is planted, and in which samples."""

    clean: Mapping[str, np.ndarray]
    control: Mapping[str, np.ndarray] | None
    fitted: Mapping[str, np.ndarray]  # by probe, the knocked-out logits that one law expects
    noise: Mapping[str, float]  # by probe, its spread around them
    factor: np.ndarray  # Cholesky factor of the noise's correlation [probe, probe]
    known: Known
    share: float  # of Q
    apart: Mapping[str, float]  # by probe, distance of the humps in spreads of the noise
    learning: Learning | None = None  # how the noise falls with more answers; None: it does not

    def world(self, rng: np.random.Generator) -> Logits:
        """Logits with the pathways in them; drawn anew at every call."""
        towards = np.where(self.known.predicted == 1, 1.0, -1.0)
        dose = (rng.random(len(towards)) < self.share) - self.share
        jolts = self.factor @ rng.standard_normal((len(PROBES), len(towards)))
        planted = {
            p: self.fitted[p] + self.noise[p] * (jolt - self.apart[p] * towards * dose)
            for p, jolt in zip(PROBES, jolts, strict=True)
        }
        return Logits(clean=self.clean, knockout=planted, control=self.control)

    def drawn(self, n: int, rng: np.random.Generator) -> Plan:
        """The plan for about n samples: entities are drawn from the run's own, with their samples.

        One that is drawn twice counts as two: what is asked is what more questions of this sort
        would show.
        """
        rows, entity = _entities_drawn(self.known, n, rng)

        def take(of: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: values[rows] for name, values in of.items()}

        return replace(
            self.learnt_from(n),
            clean=take(self.clean),
            control=None if self.control is None else take(self.control),
            fitted=take(self.fitted),
            known=replace(self.known.take(rows), entity=entity),
        )

    def learnt_from(self, n: int) -> Plan:
        """The plan with the noise of probes that have n answers; its humps stay where they are."""
        if self.learning is None:
            return self
        covariance = self.learning.noise_at(n)
        spread = dict(zip(PROBES, np.sqrt(np.diag(covariance)), strict=True))
        correlation = covariance / np.outer([*spread.values()], [*spread.values()])
        return replace(
            self,
            noise=spread,
            factor=np.linalg.cholesky(correlation + 1e-6 * np.eye(len(PROBES))),
            apart={p: self.apart[p] * self.noise[p] / spread[p] for p in PROBES},
        )


def clear_case(logits: Logits, known: Known) -> Plan | None:
    """Humps that are CLEAR spreads apart; None without any noise to plant them in."""
    fits = {p: one_law(logits.clean[p], logits.knockout[p], known) for p in PROBES}
    noise = {p: _noise(fits[p].residual) for p in PROBES}
    if not all(noise.values()):
        return None
    return Plan(
        clean=logits.clean,
        control=logits.control,
        fitted={p: fit.fitted for p, fit in fits.items()},
        noise=noise,
        factor=np.linalg.cholesky(_shared_noise(logits, known)),
        known=known,
        share=_share(logits),
        apart=dict.fromkeys(PROBES, CLEAR),
    )


def _entities_drawn(
    known: Known, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of about n samples, whole entities with replacement, and who belongs together there."""
    own = np.arange(len(known.fold)) if known.entity is None else known.entity
    number = np.unique(own, return_inverse=True)[1]
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    size = len(own) / len(members)
    drawn = rng.integers(0, len(members), max(1, round(n / size)))
    rows = np.concatenate([members[of] for of in drawn])
    return rows, np.repeat(np.arange(len(drawn)), [len(members[of]) for of in drawn])


def _noise(residual: np.ndarray) -> float:
    """The spread of the residuals, within the humps where there are clearly two."""
    if not residual.std() > 0:
        return 0.0
    humps = two_humps(residual)
    if humps.bic <= STRONG or humps.lower.all() or not humps.lower.any():
        return float(residual.std())
    parts = (residual[humps.lower], residual[~humps.lower])
    return float(np.sqrt(sum(part.var() * len(part) for part in parts) / len(residual)))


def _share(logits: Logits) -> float:
    flipped = (logits.clean["paper"] > 0) != (logits.knockout["paper"] > 0)
    return float(np.clip(flipped.mean(), *SHARES))


def _shared_noise(logits: Logits, known: Known) -> np.ndarray:
    """Correlation of the probes' noise [probe, probe], from the control where there is one."""
    moved = logits.control or logits.knockout
    left = [one_law(logits.clean[p], moved[p], known).residual for p in PROBES]
    return np.corrcoef(left) + 1e-6 * np.eye(len(PROBES))
