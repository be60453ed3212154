"""The order of a run: questions, answers and states, probes, tables, figures, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.ablate import Variant, ablation_table, variants
from anchorscope.analyse import Labelled, Tables, analyse, labelled, save_tables
from anchorscope.answers.generate import Answerer, write_lines
from anchorscope.asked import Questions, data_names, question_sets, source_of
from anchorscope.config import Config
from anchorscope.engine.interventions import ANSWER_ONLY, Intervention
from anchorscope.engine.lease import Lease
from anchorscope.evidence.patched import Asking
from anchorscope.evidence.shards import Shards
from anchorscope.extract import Extraction
from anchorscope.gather import Gathering, further_knockouts, further_names
from anchorscope.identity import questions_hash
from anchorscope.prepare import Prepared, prepare
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet, Sample
from anchorscope.run_model import run_model
from anchorscope.show import RunView, write_figures, write_report
from anchorscope.spans.agreement import agreement
from anchorscope.spans.parsed import load_pipeline
from anchorscope.spans.question import Found, find_spans
from anchorscope.store import Store
from anchorscope.style import Style, settle_style


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
    config = config or Config()
    sets = question_sets(questions, config)
    config = replace(
        config, model=source_of(model, config), data=tuple(data_names(questions, config, sets))
    )
    # What is asked is known by its content: the same file under another path is the same run.
    asked = {"data": [given.name for given in sets], "questions": questions_hash(sets)}
    # What is wrong with the choices is said before anything slow starts, and leaves no folder.
    variants(config.ablate, config)
    if config.finder == "spacy":
        load_pipeline()
    store = Store.open(out, config.identity() | asked)
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


@dataclass
class _Run:
    """One run under way."""

    store: Store
    config: Config
    sets: Sequence[QuestionSet]
    progress: Progress

    def go(self, given: Any) -> RunView:
        """Every stage in turn; each leaves its files before the next begins."""
        with self._stage("model"):
            model = run_model(
                self.store, self.config, self.sets, given=given, progress=self.progress
            )
        with Lease(model) as lease:
            with self._stage("preparation"):
                prepared = self._prepare(lease)
            samples = self._extract(lease, prepared)
            parts = [labelled(samples, given.name, self.config) for given in self.sets]
            others = self._extract_variants(lease, prepared)
            tables, evidence = self._learn(lease, prepared, samples, parts)
        with self._stage("tables"):
            save_tables(self.store, tables, samples, parts, evidence)
            if others:
                count = len(self._shards(prepared))
                table = ablation_table(self.store, parts, others, shards=count, config=self.config)
                self.store.write("tables/ablate.csv", partial(table.to_csv, index=False))
        with self._stage("report"):
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
        numbered = self._shards(prepared)
        gathering = Gathering(self.store, self.config, len(numbered))
        if further := further_knockouts(self.config):
            self._extract(lease, prepared, "windows", further)
        with self._stage("evidence"):
            shards = self._evidence_shards(lease, numbered, samples)
            gathering.before_probes(shards, self._asking(lease))
        with self._stage("probes"):
            names = [i.name for i in interventions_of(self.config)]
            how = {"model": lease.model.name, "shards": len(numbered), "config": self.config}
            more = further_names(self.config)
            found = analyse(self.store, parts, names, **how, further=more, progress=self.progress)
        with self._stage("evidence"):
            gathering.with_probes(shards, parts, found)
            tables = gathering.tables(parts, found, samples, lease.model.name)
        return found.tables, tables

    def _evidence_shards(
        self, lease: Lease, numbered: Sequence[Sequence[Prepared]], samples: Sequence[Sample]
    ) -> Shards:
        by_id = {sample.id: sample for sample in samples}
        shards = [[by_id[p.question.id] for p in shard] for shard in numbered]
        return Shards(lease, self.store, shards, seed=self.config.seed, progress=self.progress)

    def _asking(self, lease: Lease) -> Asking:
        """How questions are asked in this run."""
        shots = {given.name: given.shots[: self.config.shots] for given in self.sets}
        style = self._style(lease).name
        return Asking(model=lease.model, style=style, seed=self.config.seed, shots=shots)

    def _prepare(self, lease: Lease) -> list[Prepared]:
        """All questions as prompts, dataset after dataset."""
        style = self._style(lease)
        prepared: list[Prepared] = []
        for given in self.sets:
            found = self._find(lease, given)
            shots = self.config.shots
            prepared += prepare(lease.model, given, found, style=style.name, shots=shots)
        self._save_agreement()
        return prepared

    def _style(self, lease: Lease) -> Style:
        """The prompt style, settled once and kept when the run is continued."""
        known = self.store.info["model"]
        if "prompt" in known:
            return Style(known["prompt"], known["prompt_why"])
        c = self.config
        style = settle_style(
            lease, self.sets, asked=c.prompt, shots=c.shots, max_tokens=c.max_tokens
        )
        self.progress.note(f"prompts as {style.name}: {style.why}")
        known |= {"prompt": style.name, "prompt_why": style.why}
        self.store.save_info({"model": known})
        return style

    def _find(self, lease: Lease, given: QuestionSet) -> list[Found]:
        generate = partial(write_lines, lease, max_tokens=24)
        return find_spans(given.questions, finder=self.config.finder, generate=generate)

    def _save_agreement(self) -> None:
        """How far the finders that cost nothing agree: tables/spans.csv."""
        questions = [question for given in self.sets for question in given]
        by_finder = {
            name: {f.id: f.spans for f in find_spans(questions, finder=name)}
            for name in ("given", "rules", "all")
        }
        table = agreement(questions, by_finder)
        self.store.write("tables/spans.csv", partial(table.to_csv, index=False))

    def _shards(self, prepared: Sequence[Prepared]) -> list[list[Prepared]]:
        """The questions in shards of one dataset each."""
        size = self.store.info["shard"]
        shards = []
        for given in self.sets:
            own = self._of_dataset(prepared, given.name)
            shards += [own[start : start + size] for start in range(0, len(own), size)]
        return shards

    def _extract(
        self,
        lease: Lease,
        prepared: Sequence[Prepared],
        name: str = "answers and states",
        interventions: Sequence[Intervention] | None = None,
        exact: dict[str, tuple[int, ...]] | None = None,
    ) -> list[Sample]:
        """Every question answered and read, a shard at a time; or read once more otherwise."""
        samples: list[Sample] = []
        self.progress.start(name, len(prepared))
        with self._stage(name) as stage:
            work = Extraction(
                model=lease.model,
                store=self.store,
                lease=lease,
                answerer=Answerer(lease.model, max_tokens=self.config.max_tokens),
                interventions=interventions or interventions_of(self.config),
                seed=self.config.seed,
                exact=exact,
            )
            for number, shard in enumerate(self._shards(prepared)):
                work.share_prefix(self._of_dataset(prepared, shard[0].question.dataset))
                samples += work.shard(number, shard)
                stage["tokens"] = work.tokens
                self.progress.advance(len(shard))
        return samples

    def _extract_variants(self, lease: Lease, prepared: Sequence[Prepared]) -> list[Variant]:
        """The same answers read once more for every choice that is to be made otherwise."""
        asked = variants(self.config.ablate, self.config)
        for variant in asked:
            exact = self._exact(lease, variant)
            self._extract(lease, prepared, variant.name, [variant.intervention], exact)
        return asked

    def _exact(self, lease: Lease, variant: Variant) -> dict[str, tuple[int, ...]] | None:
        """The exact question tokens another finder marks, by question; None: the run's own."""
        if variant.finder is None:
            return None
        marked: dict[str, tuple[int, ...]] = {}
        for given in self.sets:
            found = find_spans(given.questions, finder=variant.finder)  # type: ignore[arg-type]
            how = {"style": self._style(lease).name, "shots": self.config.shots}
            for one in prepare(lease.model, given, found, **how):
                marked[one.question.id] = one.exact_question
        return marked

    def _of_dataset(self, prepared: Sequence[Prepared], name: str) -> list[Prepared]:
        return [p for p in prepared if p.question.dataset == name]

    def _show(self) -> None:
        view = RunView.open(self.store.path, unfinished_ok=True)
        write_figures(view)
        write_report(view)

    @contextmanager
    def _stage(self, name: str) -> Iterator[dict[str, float]]:
        """Adds the seconds (and tokens) of a stage to run.json, also where it breaks off."""
        begun, spent = time.monotonic(), {"tokens": 0.0}
        try:
            yield spent
        finally:
            stages = self.store.info.get("stages", {})
            before = stages.get(name, {"seconds": 0.0, "tokens": 0})
            stages[name] = {
                "seconds": round(before["seconds"] + time.monotonic() - begun, 2),
                "tokens": int(before["tokens"] + spent["tokens"]),
            }
            self.store.save_info({"stages": stages})
