"""Claims about the groups themselves: two pathways, and what they know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    percentile_interval,
    weighted,
)

_DECISIONS: dict[str, Decision] = {"two-pathways": "holds", "undecided": "undecided"}
NAMED = 10.0  # points: the gap whose exclusion at every layer speaks against two pathways
POWER = 0.8  # the least chance of finding the clear case for that to count


def two_pathways(run: ClaimInputs) -> Iterator[Claim]:
    """The first claim. Paper mode asks only whether the groups it made differ."""
    for dataset in run.titles:
        verdict = run.verdict_of(dataset)
        at = int(verdict["layer"]) - 1
        paper, strict = (_gap_at(run, dataset, mode, at) for mode in MODES)
        finding = str(verdict["finding"])
        otherwise: Decision = "fails" if _excluded(run, dataset) else "not shown"
        strict = replace(
            strict,
            p_holds=float(verdict["p"]),
            decided_elsewhere=_DECISIONS.get(finding, otherwise),
        )
        yield Claim(
            claim="two-pathways",
            statement=f"samples fall into two pathways (gap of Q and A at layer {at + 1})",
            source="figure",
            model=run.model,
            dataset=dataset,
            paper=paper,
            strict=strict,
            finding=finding,
            primary=True,
        )


def _excluded(run: ClaimInputs, dataset: str) -> bool:
    """Whether a strict gap of NAMED points lies outside the interval of every layer.

    Not rejecting one mechanism at one layer speaks for nothing: the run must have been able to
    find the clear case, and no layer may leave room for a gap worth the name.
    """
    if not float(run.verdict_of(dataset).get("power", np.nan)) >= POWER:
        return False
    curves = run.curves[dataset, "strict"]
    gap, drawn = curves.q - curves.a, curves.drawn_q - curves.drawn_a
    layers = np.flatnonzero(np.isfinite(gap))
    lows = [percentile_interval(gap[at], drawn[:, at], len(drawn)).low for at in layers]
    return bool(lows) and all(low > -NAMED for low in lows)


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
