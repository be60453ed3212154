"""What every kind of run does with the model: prompts, answers and states, a shard at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from anchorscope.answers.generate import Answerer, write_lines
from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.evidence.patched import Asking
from anchorscope.evidence.shards import Shards
from anchorscope.extract import Extraction
from anchorscope.models import Model
from anchorscope.prepare import Prepared, prepare
from anchorscope.progress import Progress
from anchorscope.records import QuestionSet, Sample
from anchorscope.run_model import run_model
from anchorscope.spans.agreement import agreement
from anchorscope.spans.question import Found, find_spans
from anchorscope.store import Store
from anchorscope.style import Style, settle_style


@dataclass
class Stages:
    """One run under way: where it goes, what was asked for, and what is asked of the model."""

    store: Store
    config: Config
    sets: Sequence[QuestionSet]
    progress: Progress

    def model(self, given: Any) -> Model:
        """The model, proved to be understood; `given` stands above what the config names."""
        with self.stage("model"):
            return run_model(
                self.store, self.config, self.sets, given=given, progress=self.progress
            )

    def prepare(self, lease: Lease) -> list[Prepared]:
        """All questions as prompts, dataset after dataset."""
        with self.stage("preparation"):
            how = {"style": self.style(lease).name, "shots": self.config.shots}
            prepared: list[Prepared] = []
            for given in self.sets:
                found = self._find(lease, given)
                prepared += prepare(lease.model, given, found, **how)
            self._save_agreement()
        return prepared

    def style(self, lease: Lease) -> Style:
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

    def shards(self, prepared: Sequence[Prepared]) -> list[list[Prepared]]:
        """The questions in shards of one dataset each."""
        size = self.store.info["shard"]
        shards = []
        for given in self.sets:
            own = self._of_dataset(prepared, given.name)
            shards += [own[start : start + size] for start in range(0, len(own), size)]
        return shards

    def extract(
        self,
        lease: Lease,
        prepared: Sequence[Prepared],
        interventions: Sequence[Intervention],
        *,
        name: str = "answers and states",
        exact: dict[str, tuple[int, ...]] | None = None,
    ) -> list[Sample]:
        """Every question answered and read, a shard at a time; or read once more otherwise."""
        samples: list[Sample] = []
        self.progress.start(name, len(prepared))
        with self.stage(name) as stage:
            work = Extraction(
                model=lease.model,
                store=self.store,
                lease=lease,
                answerer=Answerer(lease.model, max_tokens=self.config.max_tokens),
                interventions=interventions,
                seed=self.config.seed,
                exact=exact,
            )
            for number, shard in enumerate(self.shards(prepared)):
                work.share_prefix(self._of_dataset(prepared, shard[0].question.dataset))
                samples += work.shard(number, shard)
                stage["tokens"] = work.tokens
                self.progress.advance(len(shard))
        return samples

    def evidence_shards(
        self, lease: Lease, prepared: Sequence[Prepared], samples: Sequence[Sample]
    ) -> Shards:
        """The shards as evidence goes through them."""
        by_id = {sample.id: sample for sample in samples}
        shards = [[by_id[p.question.id] for p in shard] for shard in self.shards(prepared)]
        return Shards(lease, self.store, shards, seed=self.config.seed, progress=self.progress)

    def asking(self, lease: Lease) -> Asking:
        """How questions are asked in this run."""
        shots = {given.name: given.shots[: self.config.shots] for given in self.sets}
        style = self.style(lease).name
        return Asking(model=lease.model, style=style, seed=self.config.seed, shots=shots)

    def _of_dataset(self, prepared: Sequence[Prepared], name: str) -> list[Prepared]:
        return [p for p in prepared if p.question.dataset == name]

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, float]]:
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
