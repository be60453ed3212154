"""Inspect one question with a finished run: answer it, cut tokens, read every state by probes.

The question is asked as in the run: the same prompt, marked and read the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import expit

from anchorscope.answers.prompted import Prompted, mark_answer
from anchorscope.config import Config
from anchorscope.detect.answer_parts import locate_answer
from anchorscope.detect.detector import Detector, RunningScore
from anchorscope.detect.prompts import Bound, Example, bind_prompts
from anchorscope.detect.read_answers import fitting
from anchorscope.detect.scored import Scored
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import Step, grow_trunk, shared_prefix
from anchorscope.engine.interventions import CLEAN, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_rows, row_for, with_mass
from anchorscope.engine.transfer import to_host
from anchorscope.errors import UserError, unknown
from anchorscope.evidence.patching import subject_span, written
from anchorscope.evidence.shards import read_ends
from anchorscope.inspection.readings import RunReadings, wrong_by_detector
from anchorscope.inspection.result import PATCH, Choices, Head, Inspection, Token
from anchorscope.models import Model, load_model
from anchorscope.records import MODES, Mode, Question, Sample, Span
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.view import RunView
from anchorscope.show.charts import color_of
from anchorscope.show.token_texts import piece
from anchorscope.spans.characters import content_words, tokens_of
from anchorscope.spans.question import QuestionSpans, find_spans

LONGEST = 2000  # characters of a question
_TRIED = 64  # prompts of the run that are rebuilt to check the tokenizer
States = dict[str, np.ndarray]  # pass -> [layer, width]
# Called with each answer token as it is fed: its id, and its states [layer, width].
OnToken = Callable[[int, np.ndarray], None]
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
        dataset: The run's dataset whose prompt and probes are used; by default the first.
        detector: Its probability that the answer is wrong is added.
        mode: Which probes give the pathway.
        cut: What the knockout cuts: a part of the question, positions of prompt tokens, or by
            default the exact question tokens.
        neutral: Also cut as many tokens that carry neither subject nor property.
        answer_only: Also leave the question out.
        subject: Also put this subject in the place of the question's own.
        window: Also cut in this many blocks that end at each layer.
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
    if isinstance(model, str | Path):
        raise UserError(
            f"The model was given by name ('{model}'), which would load it for every question. "
            f"Load it once: load_model('{model}')."
        )
    loaded: Model = load_model(model)
    view = run if isinstance(run, RunView) else RunView.open(run)
    opened = _OPEN.setdefault(loaded.lm, {})  # kept while the model lives
    key = (str(view.path.resolve()), view.info.get("started"), dataset, id(detector))
    if key not in opened:
        opened[key] = Inspector.open(loaded, view, dataset=dataset, detector=detector)
    inspector = opened[key]
    chosen = inspector.positions(question, cut) if isinstance(cut, str) else cut
    choices = Choices(
        cut=None if chosen is None else tuple(chosen),
        neutral=neutral,
        answer_only=answer_only,
        subject=subject,
        window=window,
        heads=tuple(heads),
    )
    return inspector.read(inspector.ask(question), choices, mode=mode)


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    """A question with the model's answer, and the states recorded while it was generated."""

    sample: Sample  # its verdict means nothing where no accepted answer is known
    states: np.ndarray  # [answer token, layer, width], as a run folder would give them back

    @property
    def clean(self) -> np.ndarray | None:
        """The states [layer, width] at the probe position; None: no answer entity to read."""
        exact = self.sample.exact_answer
        return self.states[exact[-1] - len(self.sample.prompt_ids)] if exact else None


def with_subject(sample: Sample, subject: str) -> str:
    """Replace the longest subject span of a question's text by another subject."""
    subject = " ".join(subject.split())
    if not subject:
        raise UserError("Type another subject first, such as another name.")
    if not sample.subject_spans:
        raise UserError("No subject was found in this question, so none can be replaced.")
    text, span = sample.question.text, subject_span(sample)
    return text[: span.start] + subject + text[span.stop :]


@dataclass(frozen=True, kw_only=True)
class Inspector:
    """Answer any question and read it with the probes of one dataset of a finished run."""

    model: Model
    readings: RunReadings
    samples: tuple[Sample, ...]  # of the dataset
    bound: Bound  # the run's prompt
    config: Config
    detector: Detector | None = None

    @classmethod
    def open(
        cls,
        model: Model,
        run: RunView,
        *,
        dataset: str | None = None,
        detector: Detector | None = None,
    ) -> Inspector:
        """The inspector of a dataset; a UserError if the model is unsupported or not the run's."""
        name = dataset or run.datasets[0]
        if name not in run.datasets:
            raise unknown("dataset of the run", name, run.datasets)
        _check_same(run, model)
        samples = tuple(s for s in run.answers if s.question.dataset == name and s.question_tokens)
        if not samples:
            raise UserError(f"The run in '{run.path}' holds no answered question of {name}.")
        config = Config.restore(dict(run.config))
        examples = [
            Example(question=s.question.text, prompt_ids=s.prompt_ids) for s in samples[:_TRIED]
        ]
        bound = bind_prompts(model, examples, finder=config.finder, max_tokens=config.max_tokens)
        if bound is None:
            raise UserError(
                f"The tokenizer of {model.name} does not give the prompts of the run in "
                f"'{run.path}'. Use the model and revision of the run: {run.model.get('source')}."
            )
        stop = min(sample.question_tokens[0] for sample in samples)
        bound.shared = shared_prefix([sample.prompt_ids for sample in samples], stop=stop)
        require_understood(model)
        if detector is not None:
            detector.bind(model, dataset=_known(detector, name))  # raises where they do not fit
        return cls(
            model=model,
            readings=RunReadings(run, name),
            samples=samples,
            bound=bound,
            config=config,
            detector=detector,
        )

    @cached_property
    def _by_text(self) -> dict[str, Sample]:
        """The run's own questions by their text."""
        return {sample.question.text: sample for sample in self.samples}

    def _fold(self, question: str) -> int | None:
        """The fold of a question of the run; None for a new one."""
        sample = self._by_text.get(question.strip())
        return None if sample is None else self.readings.folds.get(sample.id)

    def positions(self, text: str, part: str) -> tuple[int, ...]:
        """The positions in the prompt of every occurrence of a part of the question."""
        text = _checked(text)
        starts = [at for at in range(len(text)) if part and text.startswith(part, at)]
        if not starts:
            raise UserError(f"The question does not contain {part!r}, so it cannot be cut.")
        spans = [Span(at, at + len(part)) for at in starts]
        prompt = self.bound.prompt(text)
        return tokens_of(spans, prompt.offsets, start=prompt.question.start)

    def ask(self, question: str, on_token: OnToken | None = None) -> RecordedAnswer:
        """Answer a question greedily, and mark its spans as a run does.

        `on_token` is called with each token as it is fed.
        """
        text = _checked(question)
        prompt, states = self._prompted(text, self._by_text.get(text)), []

        def keep(step: Step) -> None:
            states.append(to_host(step.states)[0].astype(np.float32))
            if on_token is not None:
                on_token(step.tokens[0], states[-1])

        with Lease(self.model) as lease:
            (answer,) = self.bound.answerer.answer(
                lease, fitting(self.bound.prefix(lease), [prompt.prompt_ids]), [prompt.question.id],
                [prompt.prompt_ids], on_token=keep,
            ).answers  # fmt: skip
        stacked = np.stack(states or [np.empty((self.model.blocks, self.model.parts.width))])
        sample = mark_answer(self.model, prompt, answer)
        return RecordedAnswer(sample=sample, states=stacked[: len(states)])

    def _prompted(self, text: str, own: Sample | None) -> Prompted:
        """Build the prompt of a question; a question of the run (`own`) keeps its id and spans."""
        prompt = self.bound.checked_prompt(text)
        if own is not None:
            question = own.question
            spans = QuestionSpans(
                id=own.id, finder=own.finder, spans=own.spans, property_spans=own.property_spans
            )
        else:
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
            dataset = self.samples[0].question.dataset
            question = Question(id=f"asked:{digest}", dataset=dataset, text=text, answers=())
            # Only finders that need neither a model nor a parser.
            finder = self.bound.finder
            (spans,) = find_spans(
                [question], finder="auto" if finder in ("given", "model", "spacy") else finder
            )
        start = prompt.question.start
        return Prompted(
            question=question,
            spans=spans,
            prompt_ids=prompt.ids,
            question_tokens=tokens_of([prompt.question], prompt.offsets),
            exact_question=tokens_of(spans.spans, prompt.offsets, start=start),
            content_tokens=tokens_of(content_words(text), prompt.offsets, start=start),
            verdict=None if question.answers else "abstain",  # neither right nor wrong
        )

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
        logits = self.readings.logits(states, self._fold(question), "strict")
        return expit(logits[:, self.readings.layer - 1]).tolist()

    def read(
        self, exchange: RecordedAnswer, choices: Choices | None = None, *, mode: Mode = "strict"
    ) -> Inspection:
        """Read an answer with the probes, clean and under the chosen changes."""
        choices, sample, readings = choices or Choices(), exchange.sample, self.readings
        choices.check(self.model, prompt=len(sample.prompt_ids))
        cut = choices.positions(self.config, sample)
        question, run = sample.question.text, readings.run
        about = Inspection(
            question=question,
            answer=sample.answer.text,
            verdict=sample.verdict if sample.question.answers else "",
            model=self.model.name,
            dataset=readings.dataset,
            title=run.titles[readings.dataset],
            mode=mode,
            layer=readings.layer,
            finding=str(readings.finding.get("finding", "")),
            why=str(readings.finding.get("why", "")),
            tokens=self._tokens(sample),
            cut=cut,
            choices=choices,
            growth=tuple(self.growth(exchange.states, question)),
            color=color_of(run.datasets.index(readings.dataset)),
        )
        if exchange.clean is None:
            return about
        states, fold = self._states(exchange, choices, cut), self._fold(question)
        logits = readings.logits(np.stack(list(states.values())), fold, mode)  # [pass, layer]
        beliefs = {
            name: tuple(own) for name, own in zip(states, expit(logits).tolist(), strict=True)
        }
        wrong = (
            readings.wrong(mode, beliefs[CLEAN.name][readings.layer - 1])
            if self.detector is None
            else wrong_by_detector(self.detector, self._scored(self.detector, exchange))
        )
        return replace(
            about,
            beliefs=beliefs,
            bands=readings.bands(mode, np.array(beliefs[CLEAN.name]) > 0.5),
            wrong=wrong,
            pathway=readings.pathway(mode, states, fold),
        )

    def _tokens(self, sample: Sample) -> tuple[Token, ...]:
        """The tokens of the question's own turn, then of the answer."""
        ids, prompt = (*sample.prompt_ids, *sample.answer.token_ids), len(sample.prompt_ids)
        tokenizer = self.model.tokenizer.backend_tokenizer
        return tuple(
            Token(
                position=at,
                text=piece(tokenizer, ids[at]),
                question=at in sample.question_tokens,
                exact_question=at in sample.exact_question,
                answer=at >= prompt,
                exact_answer=at in sample.exact_answer,
            )
            for at in range(min(len(self.bound.shared), prompt), len(ids))
        )

    def _states(self, exchange: RecordedAnswer, choices: Choices, cut: tuple[int, ...]) -> States:
        """The states [layer, width] at the probe position, clean and under each choice."""
        assert exchange.clean is not None
        sample, budget = exchange.sample, Budget.of(self.model)
        passes = choices.passes(self.config)
        # A cut of nothing changes nothing: its state is the clean one.
        states: States = {CLEAN.name: exchange.clean} | {
            each.name: exchange.clean for each in passes
        }
        with Lease(self.model) as lease:
            # All passes are rows of one trunk, as in a run.
            prefix = fitting(self.bound.prefix(lease), [sample.prompt_ids])
            trunk = grow_trunk(lease, prefix, [sample.prompt_ids]).trunk
            own = replace(positions_of(sample), exact_question=cut)
            (positions,) = with_mass(lease, trunk, [own], budget=budget)
            assert positions is not None
            seed = self.config.seed
            rows = [
                row_for(trunk, positions, 0, each, seed=seed)
                for each in passes
                if cut or each.answer_only
            ]
            for batch, read in read_rows(lease, trunk, rows, budget=budget):
                for row, state in zip(batch, to_host(read), strict=True):
                    states[row.intervention.name] = state
            if choices.subject.strip():
                # The prompt about another subject, with the sample's own answer after it.
                other = self._prompted(_checked(with_subject(sample, choices.subject)), None)
                patched = other.prompt_ids + written(sample)
                front = fitting(self.bound.prefix(lease), [patched])
                states |= read_ends(lease, front, {PATCH: patched}, budget=budget)
        return {name: state.astype(np.float32) for name, state in states.items()}

    def _scored(self, detector: Detector, exchange: RecordedAnswer) -> Scored:
        """Score the answer by the detector, from the recorded states if these are all it reads."""
        dataset = _known(detector, exchange.sample.question.dataset)
        own, clean = detector.bind(self.model, dataset=dataset), exchange.clean
        text, answer = exchange.sample.question.text, exchange.sample.answer
        same = (own.before, own.after) == (self.bound.before, self.bound.after)
        if not (same and detector.reads_states_alone) or clean is None:
            return detector.score(self.model, text, answer=answer.text, dataset=dataset)
        located = locate_answer(self.model, text, answer)
        return detector.score_located([located], clean[None][: len(located.entities)])[0]


def _known(detector: Detector, dataset: str) -> str:
    """The dataset if the detector knows it, else the detector's first dataset."""
    return dataset if dataset in detector.datasets else detector.datasets[0]


def _checked(text: str) -> str:
    text = text.strip()
    if not text:
        raise UserError("Type a question, or pick one of the run's.")
    if len(text) > LONGEST:
        raise UserError(
            f"The question has {len(text)} characters. Accepted: up to {LONGEST}. Shorten it."
        )
    return text


def _check_same(run: RunView, model: Model) -> None:
    dtype = str(model.dtype).removeprefix("torch.")
    if run.model.get("dtype") != dtype:
        raise UserError(
            f"The run in '{run.path}' was made in {run.model.get('dtype')}, and {model.name} is "
            f"here in {dtype}. Load it with dtype={run.model.get('dtype')!r}."
        )
    if run.model.get("weights") != weights_hash(model.lm):
        raise UserError(
            f"The probes of '{run.path}' belong to {run.model_name}; {model.name} has other "
            "weights. Use the run's model, or make a run of this one."
        )
