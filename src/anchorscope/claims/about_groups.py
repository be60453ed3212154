"""Claims about the groups themselves: two pathways, and what they know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorscope.claims.decision import (
    Claim,
    Decision,
    Measured,
    Region,
    both,
    from_draws,
    from_estimate,
)
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import MODES, Estimate, Mode
from anchorscope.stats.intervals import (
    Draws,
    difference_of_means,
    weighted,
)

ENOUGH = 0.8  # the least power at which what was not found is excluded


def two_pathways(run: ClaimInputs) -> Iterator[Claim]:
    """The first claim. Paper mode asks only whether the groups it made differ."""
    for dataset in run.titles:
        row = run.finding_of(dataset)
        at = int(row["layer"]) - 1
        gap = Estimate(*(float(row[name]) for name in ("gap", "gap_low", "gap_high")), n=0)
        yield Claim(
            claim="two-pathways",
            statement="samples fall into two pathways (gap of Q and A)",
            source="figure",
            model=run.model,
            dataset=dataset,
            paper=_gap_at(run, dataset, "paper", at),
            strict=replace(
                from_estimate(gap, Region(high=0.0)),
                p_holds=float(row["dip_p"]),
                decided_elsewhere=_decision(row),
            ),
            finding=str(row["finding"]),
            primary=True,
        )


def _decision(row: Mapping[str, Any]) -> Decision:
    """Strict mode's decision follows from the finding.

    `fails` needs the alternative excluded: one law for all samples, in a run that would have seen
    a half and a fifth of them lose their belief. A gap near zero excludes nothing.
    """
    if row["finding"] == "two-pathways":
        return "holds"
    seen = float(row["power_half"]) >= ENOUGH and float(row["power_fifth"]) >= ENOUGH
    if row["finding"] in ("uniform", "no-effect") and seen:
        return "fails"
    return "not shown"


def _gap_at(run: ClaimInputs, dataset: str, mode: Mode, layer: int) -> Measured:
    curves = run.curves[dataset, mode]
    value = float((curves.q - curves.a)[layer])
    return from_draws(value, (curves.drawn_q - curves.drawn_a)[:, layer], Region(high=0.0))


def group_claims(run: ClaimInputs) -> Iterator[Claim]:
    """Accuracy and popularity of Q against A, at the chosen layer."""
    groups = {name: [_Groups.of(run, name, mode) for mode in MODES] for name in run.titles}
    for dataset, modes in groups.items():
        yield _accuracy(run, dataset, *modes)
    for dataset, (paper, strict) in groups.items():
        if np.isfinite(paper.popularity).any():
            yield _popularity(run, dataset, paper, strict)


def _accuracy(run: ClaimInputs, dataset: str, paper: _Groups, strict: _Groups) -> Claim:
    """Strict mode compares within ŷ, and the group must predict z beyond what is known anyway."""
    row = run.layer_of(dataset)
    inside = from_estimate(strict.within(1.0 - strict.z), Region(low=0.0))
    ends = (float(row["adds_gain" + end]) for end in ("", "_low", "_high"))
    adds = from_estimate(Estimate(*ends, n=0), Region(low=0.0))
    return Claim(
        claim="q-knows",
        statement="Q samples are answered right more often than A samples (share)",
        source="paper",
        model=run.model,
        dataset=dataset,
        paper=from_estimate(paper.difference(1.0 - paper.z), Region(low=0.0)),
        strict=both(inside, adds),
    )


def _popularity(run: ClaimInputs, dataset: str, paper: _Groups, strict: _Groups) -> Claim:
    return Claim(
        claim="q-popular",
        statement="Q samples ask about more popular subjects (powers of ten)",
        source="paper",
        model=run.model,
        dataset=dataset,
        paper=from_estimate(paper.difference(paper.popularity), Region(low=0.0)),
        strict=from_estimate(strict.within(strict.popularity), Region(low=0.0)),
    )


@dataclass(frozen=True)
class _Groups:
    """The samples of one mode at the chosen layer, [question] each."""

    q: np.ndarray  # 1.0 for Q, 0.0 for A
    z: np.ndarray
    prediction: np.ndarray
    popularity: np.ndarray  # powers of ten, NaN where unknown
    entity: np.ndarray  # what a bootstrap draws
    draws: Draws

    @classmethod
    def of(cls, run: ClaimInputs, dataset: str, mode: Mode) -> _Groups:
        rows = run.samples(dataset, mode)
        ids = rows["id"].tolist()  # one by one, texts of a column take long
        popularity = np.array([run.popularity.get(str(id), np.nan) for id in ids], dtype=float)
        return cls(
            q=np.asarray(rows["pathway"] == "Q", dtype=float),
            z=np.asarray(rows["z"], dtype=float),
            prediction=np.asarray(rows["prediction"], dtype=float),
            popularity=np.log10(np.where(popularity > 0, popularity, np.nan)),
            entity=run.entities(ids),
            draws=Draws(seed=run.seed, resamples=run.resamples),
        )

    def difference(self, values: np.ndarray) -> Estimate:
        """The mean of Q less that of A."""
        return difference_of_means(values, self.q, self.draws, entity=self.entity)

    def within(self, values: np.ndarray) -> Estimate:
        """The same within each predicted class, averaged by size."""
        parts = [self.prediction == which for which in (0, 1)]
        differences = [
            difference_of_means(values[part], self.q[part], self.draws, entity=self.entity[part])
            for part in parts
        ]
        return weighted([e for e in differences if np.isfinite(e[:3]).all()])
