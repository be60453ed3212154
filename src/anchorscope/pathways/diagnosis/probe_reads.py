"""Whether a run's probes read anything: how many of each class, AUROC, and AUROC of chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.diagnosis.at_layer import AtLayer
from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, where

SHUFFLES = 5
FEW = 50  # answers of the rarer class below which a probe at chance is most likely short of them


@dataclass(frozen=True, kw_only=True)
class ProbeReads:
    """The clean probe of the layer at which the finding is made."""

    layer: int  # k, from 1: the one whose clean probe reads best
    layers: int  # of the model
    right: int
    wrong: int
    auroc: Estimate
    shuffled: tuple[float, ...]  # the same with shuffled labels, several times

    @property
    def at_chance(self) -> bool:
        """Whether the interval reaches a half, or shuffled labels read as well."""
        return not (self.auroc.low > 0.5 and self.auroc.value > max(self.shuffled))

    @property
    def why(self) -> str:
        """What to look at where the probe is at chance; empty where it reads."""
        if not self.at_chance:
            return ""
        rarer = min((self.right, "right"), (self.wrong, "wrong"))
        if rarer[0] < FEW:
            return (
                f"the probe is at chance, and it has only {rarer[0]} {rarer[1]} answers to learn "
                "from: ask more questions, or such as this model answers wrong about half the time"
            )
        return (
            "the probe is at chance with enough answers of both kinds: read the doubtful verdicts "
            "(anchorscope verdicts); if they are right, this model's states do not tell a linear "
            "probe which of these answers are wrong"
        )


def probe_reads(run: RunView, at: AtLayer) -> ProbeReads:
    """What the probe of this dataset reads; AUROC and its interval are the run's own."""
    table = where(run.probes, dataset=at.answers.dataset)
    row = next(row for row in records(table) if int(row["layer"]) == at.layer)
    z = at.answers.z
    return ProbeReads(
        layer=at.layer,
        layers=len(table),
        right=int(np.sum(z == 0)),
        wrong=int(np.sum(z == 1)),
        auroc=Estimate(row["auroc"], row["auroc_low"], row["auroc_high"], len(z)),
        shuffled=tuple(at.shuffled_auroc(seed=seed) for seed in range(SHUFFLES)),
    )
