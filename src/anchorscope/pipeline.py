"""The order of a run: questions, answers and states, probes, tables, figures, report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.ablate import Variant, ablation_table, variants
from anchorscope.analyse import Labelled, Tables, analyse, labelled, save_tables
from anchorscope.asked import Questions, settled
from anchorscope.config import Config
from anchorscope.engine.interventions import ANSWER_ONLY, Intervention
from anchorscope.engine.lease import Lease
from anchorscope.gather import Gathering, further_names, further_passes
from anchorscope.prepare import Prepared, prepare
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet, Sample
from anchorscope.show import RunView, write_figures, write_report
from anchorscope.spans.question import find_spans
from anchorscope.stages import Stages
from anchorscope.store import Store


def run(
    model: Any = None,
    questions: Questions | Sequence[QuestionSet] | None = None,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> RunView:
    """The finished run in folder `out`; continued where it stopped if it is there already.

    `model` (a name, a transformers model, or what `load_model` gave) and `questions` (a name, a
    file, a list, or what `load_questions` gave) stand above what `config` says of them.
    """
    config, sets, identity = settled(model, questions, config or Config())
    # What is wrong with the choices is said before anything slow starts, and leaves no folder.
    variants(config.ablate, config)
    store = Store.open(out, identity)
    if store.info.get("finished") and all(
        set(asked) <= set(store.info.get(name, ())) for name, asked in _extras(config).items()
    ):
        return RunView.open(store.path)
    return _Run(store, config, sets, progress or Quiet()).go(model)


def interventions_of(config: Config) -> tuple[Intervention, ...]:
    """The passes of a run beside the clean one."""
    cut = partial(Intervention, where=config.where, layers=config.layers)
    return (
        cut(name="knockout", keys=config.keys),
        cut(name="random", keys="random"),
        cut(name="matched", keys="matched"),
        cut(name="question", keys="question"),
        ANSWER_ONLY,
    )


def _extras(config: Config) -> dict[str, list[str]]:
    """What may be added to a finished run, by its name in run.json."""
    return {"ablated": list(config.ablate), "evidence": list(config.evidence)}


class _Run(Stages):
    """One run under way, to its report."""

    def go(self, given: Any) -> RunView:
        """Every stage in turn; each leaves its files before the next begins."""
        model = self.model(given)
        with Lease(model) as lease:
            prepared = self.prepare(lease)
            samples = self.extract(lease, prepared, interventions_of(self.config))
            parts = [labelled(samples, given.name, self.config) for given in self.sets]
            others = self._extract_variants(lease, prepared)
            tables, evidence = self._learn(lease, prepared, samples, parts)
        with self.stage("tables"):
            save_tables(self.store, tables, samples, parts, evidence)
            if others:
                count = len(self.shards(prepared))
                table = ablation_table(self.store, parts, others, shards=count, config=self.config)
                self.store.write("tables/ablate.csv", partial(table.to_csv, index=False))
        with self.stage("report"):
            self._show()
        self.store.save_info({"finished": True, **_extras(self.config)})
        return RunView.open(self.store.path)

    def _learn(
        self,
        lease: Lease,
        prepared: Sequence[Prepared],
        samples: Sequence[Sample],
        parts: Sequence[Labelled],
    ) -> tuple[Tables, dict[str, pd.DataFrame]]:
        """The probes and their tables, and those of the further evidence around them."""
        shards = self.evidence_shards(lease, prepared, samples)
        count = len(shards.samples)
        gathering = Gathering(self.store, self.config, count)
        if further := further_passes(self.config):
            self.extract(lease, prepared, further, name="further passes")
        with self.stage("evidence"):
            gathering.before_probes(shards, self.asking(lease))
        with self.stage("probes"):
            names = [i.name for i in interventions_of(self.config)]
            how = {"model": lease.model.name, "shards": count, "config": self.config}
            more = further_names(self.config)
            found = analyse(self.store, parts, names, **how, further=more, progress=self.progress)
        with self.stage("evidence"):
            gathering.with_probes(shards, parts, found)
            tables = gathering.tables(parts, found, samples, lease.model.name)
        return found.tables, tables

    def _extract_variants(self, lease: Lease, prepared: Sequence[Prepared]) -> list[Variant]:
        """The same answers read once more for every choice that is to be made otherwise."""
        asked = variants(self.config.ablate, self.config)
        for variant in asked:
            exact = self._exact(lease, variant)
            self.extract(lease, prepared, [variant.intervention], name=variant.name, exact=exact)
        return asked

    def _exact(self, lease: Lease, variant: Variant) -> dict[str, tuple[int, ...]] | None:
        """The exact question tokens another finder marks, by question; None: the run's own."""
        if variant.finder is None:
            return None
        marked: dict[str, tuple[int, ...]] = {}
        for given in self.sets:
            found = find_spans(given.questions, finder=variant.finder)  # type: ignore[arg-type]
            how = {"style": self.style(lease).name, "shots": self.config.shots}
            for one in prepare(lease.model, given, found, **how):
                marked[one.question.id] = one.exact_question
        return marked

    def _show(self) -> None:
        view = RunView.open(self.store.path, unfinished_ok=True)
        write_figures(view)
        write_report(view)
