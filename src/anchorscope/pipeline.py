"""The order of a run: questions, answers and states, probes, tables, figures, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from anchorscope.ablate import Variant, ablation_table, variants
from anchorscope.analyse import analyse, labelled, save_tables
from anchorscope.answers.generate import Answerer, write_lines
from anchorscope.asked import Questions, command_of, data_names, described, question_sets, source_of
from anchorscope.config import Config
from anchorscope.engine.check import require_understood
from anchorscope.engine.interventions import ANSWER_ONLY, Intervention
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.extract import Extraction
from anchorscope.identity import git_revision, questions_hash, versions, weights_hash
from anchorscope.models import Model, load_model
from anchorscope.pathways.grouping import check_grouping
from anchorscope.prepare import Prepared, prepare
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet, Sample
from anchorscope.show import RunView, write_figures, write_report
from anchorscope.spans.agreement import agreement
from anchorscope.spans.parsed import load_pipeline
from anchorscope.spans.question import Found, find_spans
from anchorscope.store import Store
from anchorscope.style import Style, settle_style

_SHARD = {"cpu": 64, "cuda": 1024}


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
    if store.info.get("finished") and set(config.ablate) <= set(store.info.get("ablated", ())):
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
            model = self._model(given)
        with Lease(model) as lease:
            with self._stage("preparation"):
                prepared = self._prepare(lease)
            samples = self._extract(lease, prepared)
            others = self._extract_variants(lease, prepared)
        names = [i.name for i in interventions_of(self.config)]
        with self._stage("probes"):
            parts = [labelled(samples, given.name, self.config) for given in self.sets]
            shards = len(self._shards(prepared))
            how = {"model": model.name, "shards": shards, "config": self.config}
            tables = analyse(self.store, parts, names, **how, progress=self.progress)
            save_tables(self.store, tables, samples, parts)
            if others:
                table = ablation_table(self.store, parts, others, shards=shards, config=self.config)
                self.store.write("tables/ablate.csv", partial(table.to_csv, index=False))
        with self._stage("report"):
            self._show()
        self.store.save_info({"finished": True, "ablated": list(self.config.ablate)})
        return RunView.open(self.store.path)

    def _model(self, given: Any) -> Model:
        """The model, proved to be understood, and the same as when the run began."""
        c = self.config
        model = load_model(
            c.model if given is None else given,
            device=c.device,
            dtype=c.dtype,
            revision=c.revision,
            trust_remote_code=c.trust_remote_code,
        )
        require_understood(model)
        check_grouping(c.grouping, model.blocks)
        facts = {
            "weights": weights_hash(model.lm),
            "dtype": str(model.dtype).removeprefix("torch."),
        }
        before = self.store.info.get("model", facts)
        if any(before[name] != fact for name, fact in facts.items()):
            raise UserError(
                f"{self.store.path} was begun with other weights or another dtype "
                f"({before['dtype']}, now {facts['dtype']}). Use the same model, or another --out."
            )
        self.progress.note(f"{model.name}: {model.why}")
        self._save_facts(model, facts)
        return model

    def _save_facts(self, model: Model, facts: dict[str, Any]) -> None:
        """Everything that a reader needs to repeat the run."""
        shard = self.config.shard or _SHARD.get(model.device.type, _SHARD["cpu"])
        known = {"name": model.name, "source": model.source, "revision": model.revision}
        shape = {"blocks": model.blocks, "width": model.parts.width}
        here = {"device": str(model.device), "why": model.why}
        before = self.store.info
        self.store.save_info(
            {
                "config": asdict(self.config),
                "command": before.get("command") or command_of(self.config, self.store.path),
                "model": {**before.get("model", {}), **known, **shape, **here, **facts},
                "datasets": [described(given) for given in self.sets],
                "shard": before.get("shard", shard),  # the size it began with: files are numbered
                "versions": versions(),
                "git": git_revision(),
                "started": before.get("started") or time.strftime("%Y-%m-%d %H:%M"),
            }
        )

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
        self, lease: Lease, prepared: Sequence[Prepared], variant: Variant | None = None
    ) -> list[Sample]:
        """Every question answered and read, a shard at a time; or a variant's knockout alone."""
        samples: list[Sample] = []
        name = variant.name if variant else "answers and states"
        self.progress.start(name, len(prepared))
        with self._stage(name) as stage:
            work = Extraction(
                model=lease.model,
                store=self.store,
                lease=lease,
                answerer=Answerer(lease.model, max_tokens=self.config.max_tokens),
                interventions=[variant.intervention] if variant else interventions_of(self.config),
                seed=self.config.seed,
                exact=self._exact(lease, variant) if variant else None,
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
            self._extract(lease, prepared, variant)
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
