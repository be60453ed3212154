"""A detector of wrong answers: trained on a run, tied to its model, used, saved and shared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload
from weakref import WeakKeyDictionary

import numpy as np
from transformers import BatchEncoding

from anchorscope.answers.generate import Answerer
from anchorscope.answers.judge import is_abstention
from anchorscope.answers.normalise import plain
from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.bind import Bound, Example, bind, check_made_for
from anchorscope.detect.deployed.card import READ_AT, model_card
from anchorscope.detect.deployed.exchanges import Exchange, common_prefix, task_of, too_long
from anchorscope.detect.deployed.hub import read_from, upload
from anchorscope.detect.deployed.located import (
    LocatedAnswer,
    Outcome,
    Scored,
    ScoredSpan,
    SpanKind,
    WithTokenizer,
    locate_answer,
    material_of,
    unknown_answer,
)
from anchorscope.detect.deployed.parts import load_parts
from anchorscope.detect.deployed.pre_answer import PreAnswerProbe, Warned, warn_all
from anchorscope.detect.deployed.read_answers import Task, read_answers
from anchorscope.detect.deployed.saved import Stored, write_folder
from anchorscope.detect.distance import Distance, far_reason
from anchorscope.detect.kinds import AUTO, short_name
from anchorscope.detect.material import Material, from_run, join, surfaces_of
from anchorscope.detect.method import Calibration, Method
from anchorscope.detect.threshold import Promise
from anchorscope.detect.train import Answers, check_method, train
from anchorscope.engine.decode import OnToken, Prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError, unknown, user_path
from anchorscope.models import Model, load_model
from anchorscope.models.prompts import generate_inputs
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Span
from anchorscope.run_folder.view import RunView

EXAMPLES = 8  # of each dataset
WIDE = 0.1  # an interval of AUROC beyond which a detector is not to be relied on
NOTHING_TO_READ = "the answer holds no entity to read"
DECLINED = "the answer declines to answer"
_GRAVITY: dict[Outcome, int] = {"right": 0, "no answer": 1, "cannot say": 2, "wrong": 3}
_PLAIN = (
    "name", "model", "prompt", "threshold", "calibrated_on", "trained_on", "evaluation", "licence",
)  # fmt: skip
_MODEL = ("name", "source", "adapter", "revision", "weights", "dtype", "blocks", "width")


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A trained detector: it scores answers, and is saved, loaded and shared.

    Examples:
        >>> import anchorscope as anc
        >>> detector = anc.Detector.load("detector")
        >>> detector.score(model, "What is the capital of France?").answer
        'Paris'

    """

    name: str  # short name of the method: combined, probe, ...
    method: Method
    model: dict[str, Any]  # name, source, adapter, revision, weights, dtype, blocks, width
    prompt: dict[str, Any]  # style, shots, max_tokens, finder
    examples: tuple[Example, ...]  # some of every dataset
    threshold: float  # of the probability
    calibrated_on: str
    trained_on: dict[str, Any]  # datasets and counts
    evaluation: dict[str, Any]  # the numbers it was accepted with
    licence: dict[str, str]
    beliefs: Beliefs | None = None  # None: saved by a version that kept none
    distance: Distance | None = None  # from the training states; None: likewise
    pre_answer: PreAnswerProbe | None = None  # None: the run kept no states of the question
    band: tuple[float, float] | None = None  # probabilities of which it cannot say; None: likewise
    promise: Promise | None = None  # what the threshold was chosen to keep, if anything
    _bound: WeakKeyDictionary = field(
        init=False, default_factory=WeakKeyDictionary, repr=False, compare=False
    )  # by model and dataset

    def __repr__(self) -> str:
        return f"Detector({self.name!r} of {self.model['name']}, threshold {self.threshold:.2f})"

    @classmethod
    def train(
        cls,
        run: RunView | str | Path,
        *,
        method: str = AUTO,
        datasets: Sequence[str] | None = None,
        folds: int = 5,
        seed: int = 0,
        resamples: int = 1000,
        risk: float | None = None,
        calibration: Calibration = "platt",
        licence: dict[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Detector:
        """Train a detector on the answers of a run, and evaluate it.

        Args:
            run: A finished run or a folder of `detect collect`, or its path.
            method: A kind's short name, or "auto" for the best of a handful on held-out answers.
            datasets: Some of the run's datasets; by default all.
            folds: Folds of the evaluation, disjoint by entity.
            seed: Decides the folds and the resamples.
            resamples: Bootstrap resamples behind each interval.
            risk: A third of the answers is set aside to choose a threshold up to which at most
                this share of the answers is wrong.
            calibration: How scores become probabilities: Platt's line, or isotonic.
            licence: The licence of the detector's card.
            progress: A listener to stages and notes; silent without one.

        Returns:
            The detector, with the evaluation it was accepted with.

        Examples:
            >>> import anchorscope as anc
            >>> trained = anc.Detector.train("runs/atlas", method="probe", folds=3, resamples=100)
            >>> trained.name, trained.datasets
            ('probe', ('atlas',))

        """
        check_method(method)
        run = run if isinstance(run, RunView) else RunView.open(run, collected_ok=True)
        names = list(datasets or run.datasets)
        for name in names:
            if name not in run.datasets:
                raise unknown("dataset of the run", name, run.datasets)
        parts = [from_run(run, name, seed=seed) for name in names]
        others = [part for one in parts if (part := surfaces_of(run, one)) is not None]
        found = train(
            Answers(plain=join(parts), surfaces=join(others) if others else None),
            method=method, model=run.model_name, folds=folds, seed=seed, resamples=resamples,
            risk=risk, calibration=calibration, progress=progress,
        )  # fmt: skip
        given = run.info.get("given_prompts", False)
        return cls(
            name=short_name(found.method),
            method=found.method,
            model={key: run.model.get(key) for key in _MODEL},
            prompt={
                "style": "given" if given else run.model.get("prompt", "text"),
                "shots": run.config.get("shots", 0),
                "max_tokens": run.config.get("max_tokens", 16),
                "finder": run.config.get("finder", "auto"),
            },
            examples=() if given else tuple(e for name in names for e in _examples(run, name)),
            threshold=found.cut.threshold,
            band=found.cut.band,
            promise=found.cut.promise,
            calibrated_on=(
                f"{calibration} calibration on held-out scores of {found.answers} answers of "
                f"{', '.join(names)} by {run.model_name}, folds disjoint by entity"
            ),
            trained_on={"datasets": names, "answers": found.answers, "wrong": found.wrong},
            evaluation=found.evaluation,
            beliefs=found.beliefs,
            distance=found.distance,
            pre_answer=found.pre_answer,
            licence=licence
            or {"detector": "other", "model": "not recorded", "data": "not recorded"},
        )

    @cached_property
    def id(self) -> str:
        """Twelve letters that only this detector has: of its weights, calibration and threshold."""
        digest = hashlib.sha256(f"{self.name} {self.method.calibration_} {self.threshold}".encode())
        for name, array in sorted(self.method.tensors().items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:12]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets whose prompts it knows: questions are asked as in one of them."""
        return tuple(dict.fromkeys(example.dataset for example in self.examples))

    @property
    def caution(self) -> str:
        """A warning where a detector was trained on too few answers; else empty."""
        low, high = self.evaluation.get("auroc_low"), self.evaluation.get("auroc_high")
        if low is None or high is None or high - low <= WIDE:
            return ""
        answers, wrong = self.trained_on["answers"], self.trained_on["wrong"]
        chance = ", which may be no better than chance" if low <= 0.5 else ""
        return (
            f"Trained on few answers: {answers}, {wrong} of them wrong. Its AUROC is only known to "
            f"lie between {low:.2f} and {high:.2f}{chance}. Collect more before you rely on it."
        )

    @property
    def calibration_set(self) -> str:
        """The answers that probability and threshold were calibrated on, in a few words."""
        on = f"{self.trained_on['answers']} answers of {', '.join(self.trained_on['datasets'])}"
        if self.promise is None:
            return on
        return f"{on}; threshold on {self.promise.entities} other entities"

    @property
    def reads_states_alone(self) -> bool:
        """Whether the score comes from clean states and nothing else."""
        return bool(self.method.layers()) and not self.method.reads_tokens

    def outcome(self, probability: float, distance: float = np.nan) -> tuple[Outcome, str]:
        """The conclusion about an answer with this probability of being wrong, and a reason."""
        low, high = self.band or (self.threshold, self.threshold)
        if reason := far_reason(distance):
            return "cannot say", reason
        if probability > high:
            return "wrong", ""
        if probability <= low:
            return "right", ""
        return "cannot say", (
            f"its probability {probability:.2f} is between {low:.2f} and {high:.2f}, where other "
            "training answers would have put the threshold on either side"
        )

    def score_of(self, material: Material) -> tuple[np.ndarray, np.ndarray]:
        """Score and calibrated probability of each answer of the material, [question] each."""
        score = self.method.decision_function(material)
        return score, self.method.calibration_.probability(score)

    def distance_of(self, clean: np.ndarray) -> np.ndarray:
        """The share of held-out training answers that are nearer than each of these, [question].

        From states [question, layer, width]; NaN where the detector keeps no distance.
        """
        if self.distance is None:
            return np.full(len(clean), np.nan)
        return self.distance.place(clean[:, self.distance.layer - 1])

    def score_located(self, answers: Sequence[LocatedAnswer], clean: np.ndarray) -> list[Scored]:
        """Answers scored by the states [entity, layer, width] at the ends of their entities."""
        counts = [len(one.entities) for one in answers]
        score = probability = distance = is_q = np.empty(0)
        belief = np.empty((len(clean), 0))
        if len(clean):
            states = {("clean", layer): clean[:, layer - 1] for layer in self.method.layers()}
            score, probability = self.score_of(material_of(answers, states))
            distance, is_q = self.distance_of(clean), np.full(len(clean), np.nan)
            if self.beliefs is not None:
                belief, is_q = self.beliefs.wrong(clean), self.beliefs.question_anchored(clean)
        out, stops = [], np.cumsum(counts).tolist()
        for one, count, stop in zip(answers, counts, stops, strict=True):
            own = slice(stop - count, stop)
            if not np.isfinite(probability[own]).all():
                raise UserError(
                    f"The answer {one.answer.text!r} got no finite score: the model's state "
                    "overflows in this dtype. Use float32."
                )
            spans = self._spans(one, probability[own], distance[own])
            if not spans:
                out.append(self._unread(one))
                continue
            # The entity that decides: of the gravest outcome the least likely to be right.
            outcomes = [
                self.outcome(*pair) for pair in zip(probability[own], distance[own], strict=True)
            ]
            worst = max(range(count), key=lambda n: (_GRAVITY[outcomes[n][0]], probability[own][n]))
            entity, at = one.entities[worst].span, own.start + worst
            q = float(is_q[at])
            outcome, reason = outcomes[worst]
            out.append(
                replace(
                    self._unread(one),
                    answer_entity=one.answer.text[entity.start : entity.stop],
                    probability=float(probability[at]),
                    score=float(score[at]),
                    outcome=outcome,
                    reason=reason,
                    spans=spans,
                    predicted_pathway="" if np.isnan(q) else "Q" if q > 0.5 else "A",
                    predicted_pathway_probability=max(q, 1 - q),
                    distance=float(distance[at]),
                    belief=tuple(belief[at].tolist()),
                )
            )
        return out

    def _spans(
        self, one: LocatedAnswer, probability: np.ndarray, distance: np.ndarray
    ) -> tuple[ScoredSpan, ...]:
        """Every sentence of an answer, followed by its entities."""
        spans: list[ScoredSpan] = []
        for sentence in dict.fromkeys(entity.sentence for entity in one.entities):
            own = [n for n, entity in enumerate(one.entities) if entity.sentence == sentence]
            found = [
                self._span(one, "entity", one.entities[n].span, probability[n], distance[n])
                for n in own
            ]
            worst = max(found, key=lambda span: (_GRAVITY[span.outcome], span.probability))
            whole = replace(
                worst,
                start=sentence.start,
                end=sentence.stop,
                text=one.answer.text[sentence.start : sentence.stop],
                kind="sentence",
            )
            spans += [whole, *found]
        return tuple(spans)

    def _span(
        self, one: LocatedAnswer, kind: SpanKind, span: Span, probability: float, distance: float
    ) -> ScoredSpan:
        return ScoredSpan(
            start=span.start,
            end=span.stop,
            text=one.answer.text[span.start : span.stop],
            kind=kind,
            probability=float(probability),
            outcome=self.outcome(float(probability), float(distance))[0],
        )

    def _unread(self, one: LocatedAnswer) -> Scored:
        text = one.answer.text
        declined = bool(plain(text)) and is_abstention(text)
        return Scored(
            question=one.question,
            answer=text,
            answer_entity="",
            probability=np.nan,
            score=np.nan,
            outcome="no answer",
            reason=DECLINED if declined else NOTHING_TO_READ,
            detector=self.id,
            threshold=self.threshold,
            calibrated_on=self.calibration_set,
        )

    @overload
    def score(
        self, model: Any, question: str, *, answer: str | None = None, dataset: str | None = None
    ) -> Scored: ...
    @overload
    def score(
        self,
        model: Any,
        question: Sequence[str],
        *,
        answer: Sequence[str | None] | None = None,
        dataset: str | None = None,
        progress: Progress | None = None,
        on_token: OnToken | None = None,
    ) -> list[Scored]: ...
    def score(self, model, question, *, answer=None, dataset=None, progress=None, on_token=None):
        """The model's own answer with its probability of being wrong, both from the same pass.

        With `answer` that answer is scored instead. Lists give lists, in batches. `dataset` says
        as which of the training datasets the questions are asked, where these differ. `on_token`
        follows the answer to a single question: it gets each token's id and states [layer, width].

        Examples:
            >>> scored = detector.score(model, "What is the capital of France?")
            >>> scored.answer, 0 < scored.probability < 1, len(scored.belief) == model.blocks
            ('Paris', True, True)
            >>> detector.score(model, "What is the capital of France?", answer="Lyon").answer
            'Lyon'

        """
        if isinstance(question, str):
            answers = None if answer is None else [answer]
            return self.score(model, [question], answer=answers, dataset=dataset)[0]
        if answer is not None and len(answer) != len(question):
            raise UserError(f"{len(question)} questions and {len(answer)} answers were given.")
        bound = self.bind(model, dataset=dataset)
        tasks = [
            bound.task(number, text, given)
            for number, (text, given) in enumerate(
                zip(question, answer or [None] * len(question), strict=True)
            )
        ]
        scored = self._read(bound.answerer, bound.prefix, tasks, progress, on_token)
        return [scored[number] for number in range(len(question))]

    def score_answers(
        self,
        model: Any,
        exchanges: Sequence[Exchange],
        *,
        dataset: str | None = None,
        progress: Progress | None = None,
    ) -> list[Scored]:
        """Score given answers to prompts or chat messages, every entity of each, in one pass.

        Nothing is written by the model: prompt and answer are fed once. `dataset` is as in `score`.

        Examples:
            >>> import anchorscope as anc
            >>> exchange = anc.Exchange(question="Capital of France?", answer="Sure! It is Paris.")
            >>> scored = detector.score_answers(model, [exchange])[0]
            >>> [span.text for span in scored.spans]
            ['It is Paris.', 'Paris']

        """
        bound = self.bind(model, dataset=dataset) if self.examples else None
        if bound is None:
            model = loaded_model(model, self.model)
            check_made_for(self.model, model)
            answerer, own = Answerer(model, max_tokens=1), None
        else:
            model, answerer, own = bound.model, bound.answerer, bound.prefix
        tasks = [task_of(model, bound, one, number) for number, one in enumerate(exchanges)]
        reasons = [too_long(model, task) for task in tasks]
        fitting = [task for task, reason in zip(tasks, reasons, strict=True) if not reason]
        scored = self._read(answerer, own or common_prefix(fitting), fitting, progress)
        return [
            replace(
                self._unread(LocatedAnswer(
                    question=task.question,
                    answer=unknown_answer(str(task.answer), task.answer_ids, 0),
                    entities=(),
                )),
                outcome="cannot say", reason=reason,
            ) if reason else scored[task.number]
            for task, reason in zip(tasks, reasons, strict=True)
        ]  # fmt: skip

    def _read(
        self,
        answerer: Answerer,
        prefix_of: Callable[[Lease], Prefix],
        tasks: Sequence[Task],
        progress: Progress | None,
        on_token: OnToken | None = None,
    ) -> dict[int, Scored]:
        """The scores of the tasks by their numbers."""
        progress, out = progress or Quiet(), {}
        progress.start("scores", len(tasks))
        reads = self.method.reads_tokens
        for batch in read_answers(
            answerer, prefix_of, tasks, token_log_probs=reads, on_token=on_token
        ):
            scored = self.score_located(batch.answers, batch.clean)
            out |= dict(zip(batch.numbers, scored, strict=True))
            progress.advance(len(scored))
        return out

    def score_states(
        self,
        token_ids: Sequence[int],
        states: np.ndarray,
        *,
        tokenizer: Any,
        question: str = "",
        log_probs: Sequence[float] | None = None,
    ) -> Scored:
        """Score an answer by its tokens and states [token, layer, width] from another engine.

        Layer k of the model is row k - 1: the residual stream after block k, the last one before
        the final norm. A detector that reads how likely each token was needs `log_probs` too.
        """
        if len(states) != len(token_ids) or states.shape[1:] != (
            self.model["blocks"], self.model["width"],
        ):  # fmt: skip
            raise UserError(
                f"States of the shape {states.shape} were given for {len(token_ids)} tokens. "
                f"Accepted: [token, {self.model['blocks']}, {self.model['width']}], a state after "
                "every block for each token of the answer."
            )
        if self.method.reads_tokens and (log_probs is None or len(log_probs) != len(token_ids)):
            raise UserError(
                f"The detector '{self.name}' reads how likely each token was. Give log_probs, "
                f"{len(token_ids)} numbers, or train with method='probe'."
            )
        text = tokenizer.decode(list(token_ids), skip_special_tokens=True)
        answer = unknown_answer(text, token_ids, 0)
        if log_probs is not None:
            answer = replace(answer, log_probs=tuple(map(float, log_probs)))
        located = locate_answer(WithTokenizer(tokenizer), question, answer, every=True)
        places = [entity.tokens[-1] for entity in located.entities]
        kept = states[places].astype(np.float16).astype(np.float32)  # as a run folder keeps them
        return self.score_located([located], kept)[0]

    @overload
    def warn(self, model: Any, question: str, *, dataset: str | None = None) -> Warned: ...
    @overload
    def warn(
        self, model: Any, question: Sequence[str], *, dataset: str | None = None
    ) -> list[Warned]: ...
    def warn(self, model, question, *, dataset=None):
        """How likely the answer will be wrong, from the question alone; lists give lists."""
        if self.pre_answer is None:
            raise UserError(
                "This detector has no warning before the answer: the run it was trained on kept no "
                "states of the question. Train one on a run of `anchorscope detect collect`."
            )
        questions = [question] if isinstance(question, str) else list(question)
        bound = self.bind(model, dataset=dataset)
        warned = warn_all(self.pre_answer, bound, questions, self.id)
        return warned[0] if isinstance(question, str) else warned

    def inputs(
        self, model: Any, questions: str | Sequence[str], *, dataset: str | None = None
    ) -> BatchEncoding:
        """The detector's prompts as inputs for `model.lm.generate(**inputs)`, padded on the left.

        `input_ids` and `attention_mask`, [question, token], on the model's device.
        """
        bound = self.bind(model, dataset=dataset)
        texts = [questions] if isinstance(questions, str) else list(questions)
        return generate_inputs(bound.model, [bound.checked_prompt(text).ids for text in texts])

    def bind(self, model: Any, *, dataset: str | None = None) -> Bound:
        """The detector's prompt for this model, found once; an error where they do not fit.

        `dataset` is one of `datasets`; it may be left out where all of them are asked alike.
        """
        model = loaded_model(model, self.model)
        if not self.examples:
            raise UserError(
                "This detector was trained on given prompts and asks no questions itself. Score "
                "answers with `score_answers`, or rows with `messages` or `prompt`."
            )
        found = self._bound.setdefault(model.lm, {})
        bound = found.get(dataset)
        if bound is None or bound.model.tokenizer is not model.tokenizer:
            bound = found[dataset] = bind(
                model,
                made_for=self.model,
                prompt=self.prompt,
                examples=self.examples,
                dataset=dataset,
            )
        return bound

    def save(self, folder: str | Path) -> Path:
        """The folder, with weights, description and model card in it."""
        folder = user_path(folder)
        tensors, about = self.method.tensors(), self._about()
        for part in (self.beliefs, self.distance, self.pre_answer):
            tensors |= {} if part is None else part.tensors()
        write_folder(folder, Stored(tensors, about), self.card)
        return folder

    @property
    def card(self) -> str:
        """The model card, which is README.md of a saved detector."""
        return model_card(self._about(), title=self.method.name, caution=self.caution)

    def _about(self) -> dict[str, Any]:
        """What detector.json holds beside its checksums."""
        about = {name: getattr(self, name) for name in _PLAIN} | {"tokens": READ_AT}
        about["method"] = self.method.about()
        about["calibration"] = asdict(self.method.calibration_)
        about["examples"] = [asdict(one) for one in self.examples]
        about["id"], about["band"] = self.id, self.band and list(self.band)
        about["before"] = self.pre_answer and self.pre_answer.about()
        if self.promise is not None:
            about["promise"] = asdict(self.promise) | {"says": str(self.promise)}
        return about

    @classmethod
    def load(cls, place: str | Path, *, revision: str | None = None) -> Detector:
        """The detector in a folder, or in a repository of the hub.

        Examples:
            >>> import anchorscope as anc
            >>> folder = detector.save("detector")
            >>> anc.Detector.load(folder).id == detector.id
            True

        """
        (_, about), parts = read_from(place, load_parts, revision=revision)
        examples = [e | {"prompt_ids": tuple(e["prompt_ids"])} for e in about["examples"]]
        band, promise = about.get("band"), about.get("promise")
        kept = {f.name for f in fields(Promise)}
        return cls(
            **{name: about[name] for name in _PLAIN},
            **parts._asdict(),
            examples=tuple(Example(**example) for example in examples),
            band=band and (float(band[0]), float(band[1])),
            promise=promise and Promise(**{k: v for k, v in promise.items() if k in kept}),
        )

    def push(self, repository: str, *, private: bool = True, folder: str | Path) -> str:
        """The address of the hub repository that the saved folder was uploaded to."""
        return upload(self.save(folder), repository, private=private)


def loaded_model(model: Any, made_for: Mapping[str, Any]) -> Model:
    """The model; an error where only its name was given."""
    if isinstance(model, str | Path):
        raise UserError(
            f"The model was given by name ('{model}'), which would load it for every call. "
            f"Load it once: load_model('{model}', dtype='{made_for.get('dtype')}')."
        )
    return load_model(model)


def _examples(run: RunView, dataset: str) -> list[Example]:
    """The first questions of the dataset whose answers are usable, with their prompts."""
    own = [s for s in run.answers if s.question.dataset == dataset and s.usable]
    return [
        Example(question=s.question.text, prompt_ids=s.prompt_ids, dataset=dataset)
        for s in own[:EXAMPLES]
    ]
