"""Inspect one question with a finished run: answer it, cut tokens, read every state by probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import expit

from anchorscope.config import Config
from anchorscope.detect.detector import Detector, RunningScore
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import grow_trunk
from anchorscope.engine.interventions import Intervention, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.read import read_rows, row_for, with_mass
from anchorscope.engine.transfer import to_host
from anchorscope.errors import UserError, unknown
from anchorscope.evidence.patching import written
from anchorscope.evidence.shards import read_ends
from anchorscope.inspection.choices import (
    PATCH,
    Choices,
    Head,
    check_choices,
    cut_positions,
    passes_of_choices,
)
from anchorscope.inspection.question import (
    OnToken,
    RecordedAnswer,
    RunPrompts,
    ask,
    prompts_of_run,
    with_subject,
)
from anchorscope.inspection.readings import (
    RunAnswers,
    answers_of,
    detector_dataset,
    pathway_of,
    wrong_by_detector,
    wrong_by_probe,
)
from anchorscope.inspection.result import Inspection, tokens_of_answer
from anchorscope.models import Model, load_model
from anchorscope.records import MODES, Mode, Sample
from anchorscope.run_folder.view import RunView
from anchorscope.show.charts import color_of

States = dict[str, np.ndarray]  # pass -> [layer, width]
_OPEN: WeakKeyDictionary[Any, dict[tuple, Inspector]] = WeakKeyDictionary()


def inspect(
    model: Any,
    question: str,
    *,
    run: RunView | str | Path,
    dataset: str | None = None,
    detector: Detector | None = None,
    mode: Mode = "strict",
    cut: str | Sequence[int] | None = None,
    neutral: bool = True,
    answer_only: bool = True,
    subject: str = "",
    window: int | None = None,
    heads: Sequence[Head] = (),
) -> Inspection:
    """Ask one question, and read the answer with the probes of a finished run.

    Args:
        model: The model of the run, or another of the same weights.
        question: The text asked.
        run: A finished run, or its folder.
        dataset: As which of the run's datasets it is asked and marked; by default the first.
        detector: Its probability that the answer is wrong is added.
        mode: Which probes give the pathway.
        cut: What the knockout cuts: a part of the question, positions of prompt tokens, or by
            default the exact question tokens.
        neutral: Also cut as many tokens that carry neither subject nor property.
        answer_only: Also leave the question out.
        subject: Also put this subject in the place of the question's own.
        window: Also cut in so many blocks that end at each layer.
        heads: Also cut in these heads alone: (block from 1, head from 0).

    Returns:
        The answer, its tokens, and the belief by layer under each change.

    Examples:
        >>> import anchorscope as anc
        >>> one = anc.inspect(model, "What is the capital of France?", run="runs/atlas")
        >>> one.answer, one.pathway.pathway in ("Q", "A"), 0 < one.wrong.probability < 1
        ('Paris', True, True)
        >>> sorted(one.beliefs)  # P(wrong) by layer, clean and under each change
        ['answer-only', 'clean', 'knockout', 'neutral']
        >>> [token.text for token in one.tokens if token.exact_question]  # what was cut
        [' capital', ' France']

    """
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    inspector = _inspector(model, run, dataset, detector)
    chosen = inspector.prompts.positions(question, cut) if isinstance(cut, str) else cut
    choices = Choices(
        cut=None if chosen is None else tuple(chosen),
        neutral=neutral,
        answer_only=answer_only,
        subject=subject,
        window=window,
        heads=tuple(heads),
    )
    return inspector.read(inspector.ask(question), choices, mode=mode)


def _inspector(
    model: Any, run: RunView | str | Path, dataset: str | None, detector: Detector | None
) -> Inspector:
    """The inspector of a model and a run, kept while the model lives."""
    if isinstance(model, str | Path):
        raise UserError(
            f"The model was given by name ('{model}'), which would load it for every question. "
            f"Load it once: load_model('{model}')."
        )
    loaded: Model = load_model(model)
    view = run if isinstance(run, RunView) else RunView.open(run)
    kept = _OPEN.setdefault(loaded.lm, {})
    key = (str(view.path.resolve()), view.info.get("started"), dataset, id(detector))
    if key not in kept:
        kept[key] = Inspector.open(loaded, view, dataset=dataset, detector=detector)
    return kept[key]


@dataclass(frozen=True)
class Inspector:
    """A model and one dataset of a finished run of it: answers and reads any question."""

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
        """The inspector of a dataset; an error where the model is unsupported or not the run's."""
        answers = answers_of(run, dataset)
        prompts = prompts_of_run(run, answers.dataset, model)
        require_understood(model)
        if detector is not None:
            # Raises now if they do not belong together.
            detector.bind(model, dataset=detector_dataset(detector, answers.dataset))
        config = Config.restore(dict(run.config))
        return cls(model, answers, prompts, detector, config)

    def growth(self, states: np.ndarray, question: str) -> list[float]:
        """P(wrong) as if the answer ended with each token, from states [token, layer, width].

        By the detector where it reads nothing but clean states, else by the run's probe.
        """
        if not len(states):
            return []
        if self.detector is not None and self.detector.reads_states_alone:
            running = RunningScore(self.detector)
            own = states[:, [layer - 1 for layer in running.layers]].astype(np.float32)
            return running.probabilities(own).tolist()
        logits = self.answers.logits(states, self.fold(question))
        strict = logits[self.answers.effect_probe("strict")]
        return expit(strict[:, self.answers.layer - 1]).tolist()

    def fold(self, question: str) -> int | None:
        """The fold of a question of the run; None for a new one."""
        sample = self.prompts.by_text.get(question.strip())
        return None if sample is None else self.answers.folds.get(sample.id)

    def ask(self, question: str, on_token: OnToken | None = None) -> RecordedAnswer:
        """The model's answer; `on_token` is called with each token as it is fed."""
        return ask(self.prompts, question, on_token)

    def read(
        self, exchange: RecordedAnswer, choices: Choices | None = None, *, mode: Mode = "strict"
    ) -> Inspection:
        """The answer with what the probes read in it, under the changes that were chosen."""
        choices, sample = choices or Choices(), exchange.sample
        check_choices(choices, self.model, prompt=len(sample.prompt_ids))
        chosen = cut_positions(choices, self.config, sample)
        answers = self.answers
        about = Inspection(
            question=sample.question.text,
            answer=sample.answer.text,
            verdict=sample.verdict if exchange.is_judged else "",
            model=self.model.name,
            dataset=answers.dataset,
            title=answers.run.titles[answers.dataset],
            mode=mode,
            layer=answers.layer,
            finding=str(answers.finding.get("finding", "")),
            why=str(answers.finding.get("why", "")),
            tokens=tokens_of_answer(self.model, exchange, start=len(self.prompts.bound.shared)),
            cut=chosen,
            choices=choices,
            growth=tuple(self.growth(exchange.states, sample.question.text)),
            colors=dict.fromkeys("QA", color_of(answers.run.datasets.index(answers.dataset))),
        )
        if exchange.clean is None:
            return about
        return self._measured(about, exchange, self._states(exchange, choices, chosen))

    def _measured(self, about: Inspection, exchange: RecordedAnswer, states: States) -> Inspection:
        """The inspection with beliefs, bands, P(wrong) and pathway read from these states."""
        answers, mode = self.answers, about.mode
        stacked = np.stack(list(states.values()))
        fold = self.fold(exchange.sample.question.text)
        logits = answers.logits(stacked, fold)  # [probe, pass, layer]
        own = dict(zip(states, logits[answers.effect_probe(mode)], strict=True))
        bands = answers.bands(mode, (own[CLEAN.name] > 0).astype(int))
        wrong = (
            wrong_by_probe(answers, mode, float(expit(own[CLEAN.name][about.layer - 1])))
            if self.detector is None
            else wrong_by_detector(self.detector, self.model, self.prompts.bound, exchange)
        )
        return replace(
            about,
            beliefs={name: tuple(expit(logit).tolist()) for name, logit in own.items()},
            bands={name: tuple(map(tuple, ends.tolist())) for name, ends in bands.items()},
            wrong=wrong,
            pathway=pathway_of(answers, mode, states, fold=fold),
        )

    def _states(
        self, exchange: RecordedAnswer, choices: Choices, chosen: tuple[int, ...]
    ) -> States:
        """The states [layer, width] at the probe position, clean and under each choice."""
        assert exchange.clean is not None
        passes = passes_of_choices(choices, self.config)
        # A cut of nothing changes nothing: its state is the clean one.
        states: States = {CLEAN.name: exchange.clean} | {cut.name: exchange.clean for cut in passes}
        with Lease(self.model) as lease:
            cutting = [cut for cut in passes if chosen or cut.answer_only]
            states |= self._cut(lease, exchange.sample, cutting, chosen)
            if choices.subject.strip():
                patched = self._patched(exchange, choices.subject)
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

    def _patched(self, exchange: RecordedAnswer, subject: str) -> tuple[int, ...]:
        """The prompt about another subject, with the sample's own answer after it."""
        other = self.prompts.prompted(with_subject(exchange.sample, subject), own=False)
        return other.prompt_ids + written(exchange.sample)
