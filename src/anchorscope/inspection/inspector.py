"""A model and a finished run of it, ready for one more question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.special import expit

from anchorscope.config import Config
from anchorscope.detect.deployed.detector import Detector
from anchorscope.engine.attention_mass import with_mass
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import require_understood
from anchorscope.engine.interventions import Intervention, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import row_for
from anchorscope.engine.transfer import to_host
from anchorscope.engine.trunk import grow_trunk
from anchorscope.evidence.patching import written
from anchorscope.evidence.shards import read_ends
from anchorscope.inspection.asking import Asked, OnToken, ask
from anchorscope.inspection.bands import RunAnswers, answers_of
from anchorscope.inspection.certainty import (
    Growing,
    asked_as,
    pathway_of,
    wrong_by_detector,
    wrong_by_probe,
)
from anchorscope.inspection.choices import (
    PATCH,
    Choices,
    check_choices,
    cut_positions,
    passes_of_choices,
)
from anchorscope.inspection.inspection import Inspection
from anchorscope.inspection.prompts import RunPrompts, prompts_of_run, with_subject
from anchorscope.inspection.record import tokens_of_answer
from anchorscope.models import Model
from anchorscope.records import Mode, Sample
from anchorscope.run_folder.view import RunView
from anchorscope.show.curves import color_of

States = dict[str, np.ndarray]  # pass -> [layer, width]


@dataclass(frozen=True)
class Inspector:
    """What stays the same over the questions of one dataset's kind."""

    model: Model
    answers: RunAnswers
    prompts: RunPrompts
    detector: Detector | None = None
    config: Config = field(default_factory=Config)

    @classmethod
    def open(
        cls,
        model: Model,
        run: RunView,
        *,
        dataset: str | None = None,
        detector: Detector | None = None,
    ) -> Inspector:
        """The inspector of a run's dataset, its model proved to be understood and the run's."""
        answers = answers_of(run, dataset)
        prompts = prompts_of_run(run, answers.dataset, model)
        require_understood(model)
        if detector is not None:
            # Said now, where they do not belong together.
            detector.bind(model, dataset=asked_as(detector, answers.dataset))
        config = Config.restore(dict(run.config))
        return cls(model, answers, prompts, detector, config)

    @cached_property
    def growing(self) -> Growing:
        """P(wrong) of an answer that ends with a token, by the detector or the run's probe."""
        return Growing(self.answers, self.detector)

    def fold(self, question: str) -> int | None:
        """The fold of a question of the run; None for a new one."""
        sample = self.prompts.by_text.get(question.strip())
        return None if sample is None else self.answers.folds.get(sample.id)

    def ask(self, question: str, heard: OnToken | None = None) -> Asked:
        """The model's answer; `heard` is told of each token as it is fed."""
        return ask(self.prompts, question, heard)

    def read(
        self, asked: Asked, choices: Choices | None = None, *, mode: Mode = "strict"
    ) -> Inspection:
        """Everything that is said of an answer, under the changes that were chosen."""
        choices, sample = choices or Choices(), asked.sample
        check_choices(choices, self.model, prompt=len(sample.prompt_ids))
        chosen = cut_positions(choices, self.config, sample)
        answers = self.answers
        about = Inspection(
            question=sample.question.text,
            answer=sample.answer.text,
            verdict=sample.verdict if asked.known else "",
            model=self.model.name,
            dataset=answers.dataset,
            title=answers.run.titles[answers.dataset],
            mode=mode,
            layer=answers.layer,
            finding=str(answers.finding.get("finding", "")),
            why=str(answers.finding.get("why", "")),
            tokens=tokens_of_answer(self.model, asked, start=len(self.prompts.bound.shared)),
            cut=chosen,
            choices=choices,
            growth=tuple(self.growing(asked.states, fold=self.fold(sample.question.text))),
            colors={name: color_of(self._place) for name in ("Q", "A")},
        )
        if asked.clean is None:
            return about
        return self._measured(about, asked, self._states(asked, choices, chosen))

    @property
    def _place(self) -> int:
        return self.answers.run.datasets.index(self.answers.dataset)

    def _measured(self, about: Inspection, asked: Asked, states: States) -> Inspection:
        """The same with what the run's probes read in these states."""
        answers, mode = self.answers, about.mode
        stacked = np.stack(list(states.values()))
        fold = self.fold(asked.sample.question.text)
        logits = answers.logits(stacked, fold)  # [probe, pass, layer]
        own = dict(zip(states, logits[answers.effect_probe(mode)], strict=True))
        bands = answers.bands(mode, (own[CLEAN.name] > 0).astype(int))
        wrong = (
            wrong_by_probe(answers, mode, float(expit(own[CLEAN.name][about.layer - 1])))
            if self.detector is None
            else wrong_by_detector(self.detector, self.model, self.prompts.bound, asked)
        )
        return replace(
            about,
            beliefs={name: tuple(expit(of).tolist()) for name, of in own.items()},
            bands={name: tuple(map(tuple, of.tolist())) for name, of in bands.items()},
            wrong=wrong,
            pathway=pathway_of(answers, mode, states, fold=fold),
        )

    def _states(self, asked: Asked, choices: Choices, chosen: tuple[int, ...]) -> States:
        """The states [layer, width] at the probe position, clean and under each choice."""
        assert asked.clean is not None
        passes = passes_of_choices(choices, self.config)
        # A cut of nothing changes nothing: its state is the clean one.
        states: States = {CLEAN.name: asked.clean} | {cut.name: asked.clean for cut in passes}
        with Lease(self.model) as lease:
            cutting = [cut for cut in passes if chosen or cut.answer_only]
            states |= self._cut(lease, asked.sample, cutting, chosen)
            if choices.subject.strip():
                patched = self._patched(asked, choices.subject)
                front = self.prompts.prefix(lease, patched)
                states |= read_ends(lease, front, {PATCH: patched}, budget=Budget.of(self.model))
        return {name: state.astype(np.float32) for name, state in states.items()}

    def _cut(
        self,
        lease: Lease,
        sample: Sample,
        passes: Sequence[Intervention],
        chosen: tuple[int, ...],
    ) -> States:
        """The states [layer, width] under these passes, all rows of one trunk as in a run."""
        prefix = self.prompts.prefix(lease, sample.prompt_ids)
        trunk = grow_trunk(lease, prefix, [sample.prompt_ids], room=0, head=False).trunk
        own = replace(positions_of(sample), exact_question=chosen)
        (positions,) = with_mass(lease, trunk, [own], budget=Budget.of(self.model))
        assert positions is not None
        place = {"blocks": self.model.blocks, "turn_at": len(prefix), "seed": self.config.seed}
        rows = [row_for(positions, 0, cut, **place) for cut in passes]
        return {
            row.intervention.name: state
            for batch, read in read_rows(lease, trunk, rows, budget=Budget.of(self.model))
            for row, state in zip(batch, to_host(read), strict=True)
        }

    def _patched(self, asked: Asked, subject: str) -> tuple[int, ...]:
        """The prompt about another subject, with the sample's own answer after it."""
        other = self.prompts.prompted(with_subject(asked.sample, subject), own=False)
        return other.prompt_ids + written(asked.sample)
