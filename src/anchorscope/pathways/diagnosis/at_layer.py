"""A finished run's own logits at the layer of its finding, read again from the stored states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.pathways.one_law import Known
from anchorscope.pathways.strict_layer import close_up
from anchorscope.pathways.two_pathways.looks import Logits
from anchorscope.probes.cross_fit import cross_fit, fit_and_read_layer
from anchorscope.probes.folds import PROBES
from anchorscope.probes.labelled import Labelled, labelled
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.stats.ranking import auroc

_READ = ("clean", "knockout", "neutral")  # of these the passes that the run has


@dataclass(frozen=True)
class AtLayer:
    """One dataset of a run at layer k, the one whose clean probe reads best."""

    layer: int
    config: Config
    answers: Labelled
    bank: StateBank

    @classmethod
    def of(cls, run: RunView, dataset: str) -> AtLayer:
        """The layer that findings.csv names; an error where the run has no such row."""
        found = records(where(run.findings, dataset=dataset))
        if not found:
            raise UserError(f"'{run.path}' has no finding on '{dataset}'. It has: "
                            f"{', '.join(run.datasets)}.")  # fmt: skip
        config = Config.restore(dict(run.config))
        answers = labelled(run.answers, dataset, config)
        return cls(int(found[0]["layer"]), config, answers, StateBank(run.path, list(answers.ids)))

    @cached_property
    def logits_and_known(self) -> tuple[Logits, Known]:
        """The logits of every probe by the run's own folds, and what is known of each sample."""
        names = [name for name in _READ if name in self.bank.names]
        states = {name: self.bank.layer(name, self.layer)[:, None] for name in names}
        readings, _ = cross_fit(
            states,
            ids=self.answers.ids,
            z=self.answers.z,
            fold=self.answers.fold,
            entity=self.answers.entities,
            C=self.config.C,
            balance=self.config.balance,
            workers=1,
        )
        return close_up(readings, 1, self.answers.covariates)

    def shuffled_auroc(self, *, seed: int) -> float:
        """AUROC of a probe trained and read with shuffled labels: what chance gives here."""
        z = np.random.default_rng(seed).permutation(self.answers.z)
        _, logits = fit_and_read_layer(
            {"clean": self.bank.layer("clean", self.layer)},
            layer=self.layer,
            ids=self.answers.ids,
            z=z,
            fold=self.answers.fold,
            entity=self.answers.entities,
            C=self.config.C,
            balance=self.config.balance,
        )
        return auroc(z, logits["clean"][PROBES.index("paper")])
