"""Train, use, save and share a detector of wrong answers, tied to its model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from anchorscope.answers.generate import Answerer
from anchorscope.answers.given import unread_answer
from anchorscope.answers.judge import is_abstention
from anchorscope.answers.normalise import plain
from anchorscope.detect.answer_parts import (
    LocatedAnswer,
    locate_answer,
    single_entity,
)
from anchorscope.detect.calibration import Calibration, Promise
from anchorscope.detect.card import model_card
from anchorscope.detect.kinds import AUTO, Probes
from anchorscope.detect.material import Arrays, Material, SampledAnswers, Text
from anchorscope.detect.method import Method
from anchorscope.detect.prompts import (
    Bound,
    Example,
    Exchange,
    bind,
    check_made_for,
    common_prefix,
    tasks_of,
)
from anchorscope.detect.read_answers import (
    AnswerBatch,
    PrefixOf,
    Task,
    read_answers,
    read_prompt_ends,
    sample_answers,
)
from anchorscope.detect.saved import Description, PreAnswerFacts, Stored, load_from, write_folder
from anchorscope.detect.scored import Outcome, Scored, ScoredSpan, Warned
from anchorscope.detect.side_probes import (
    Beliefs,
    Distance,
    PreAnswerProbe,
    arrays_of,
    far_reason,
)
from anchorscope.detect.train import train
from anchorscope.engine.decode import OnToken
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError, user_path
from anchorscope.models import Model, load_model
from anchorscope.models.prompts import too_long
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.view import RunView
from anchorscope.spans.characters import tokens_of

WIDE = 0.1  # width of the AUROC interval beyond which a detector is unreliable
_IN_PLACE = (
    "the answer holds several entities, or words that change what it says of its only one, and the "
    "detector learnt from answers that are one entity"
)


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
    model: Mapping[str, Any]  # name, source, adapter, revision, weights, dtype, blocks, width
    prompt: Mapping[str, Any]  # style, shots, max_tokens, finder
    examples: tuple[Example, ...]  # some of every dataset
    threshold: float  # of the probability
    calibrated_on: str
    trained_on: Mapping[str, Any]  # datasets and counts
    evaluation: dict[str, Any]  # its numbers on held-out answers
    licence: dict[str, str]
    beliefs: Beliefs | None = None
    distance: Distance | None = None  # from the training states
    pre_answer: PreAnswerProbe | None = None  # None: the run kept no states of the question
    band: tuple[float, float] | None = None  # probabilities between which it cannot say
    promise: Promise | None = None  # the guarantee that the threshold was chosen for, if any
    _bound: WeakKeyDictionary = field(
        init=False, default_factory=WeakKeyDictionary, repr=False, compare=False
    )  # by model and dataset

    def __repr__(self) -> str:
        return f"Detector({self.name!r} of {self.model['name']}, threshold {self.threshold:.2f})"

    # --- Training, saving, loading ---

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
                "semantic-entropy" and "self-check" sample answers for each one they score.
            datasets: Some of the run's datasets; by default all.
            folds: Folds of the evaluation, disjoint by entity.
            seed: Decides the folds and the resamples.
            resamples: Bootstrap resamples behind each interval.
            risk: A third of the answers is set aside to choose a threshold up to which at most
                this share of the answers is wrong.
            calibration: How scores become probabilities: Platt's line, or isotonic.
            licence: Licences of detector, model and data for the model card.
            progress: A listener to stages and notes; silent without one.

        Returns:
            The detector with its evaluation.

        Examples:
            >>> import anchorscope as anc
            >>> trained = anc.Detector.train("runs/atlas", method="probe", folds=3, resamples=100)
            >>> trained.name, trained.datasets
            ('probe', ('atlas',))

        """
        run = run if isinstance(run, RunView) else RunView.open(run, collected_ok=True)
        found = train(
            run, method=method, datasets=datasets, folds=folds, seed=seed, resamples=resamples,
            risk=risk, calibration=calibration, progress=progress or Quiet(),
        )  # fmt: skip
        usual = {"detector": "other", "model": "not recorded", "data": "not recorded"}
        return cls(**found, licence=licence or usual)

    @classmethod
    def load(cls, place: str | Path, *, revision: str | None = None) -> Detector:
        """Load a detector from a folder or a repository of the hub.

        Examples:
            >>> import anchorscope as anc
            >>> folder = detector.save("detector")
            >>> anc.Detector.load(folder).id == detector.id
            True

        """
        return cls(**load_from(place, revision=revision))

    def save(self, folder: str | Path) -> Path:
        """Write weights, description and model card to a folder; return the folder."""
        folder, tensors = user_path(folder), self.method.arrays()
        for name, part in (
            ("beliefs.", self.beliefs),
            ("distance.", self.distance),
            ("pre_answer.", self.pre_answer),
            ("pre_answer.distance.", self.pre_answer and self.pre_answer.distance),
        ):
            tensors |= {} if part is None else arrays_of(part, name)
        values = vars(self) | {"calibration": self.method.calibration_}
        about = {name: values[name] for name in Description.model_fields} | {"id": self.id}
        if self.pre_answer is not None:
            tensors.pop("pre_answer.threshold")
            kept = PreAnswerFacts.model_fields
            about["pre_answer"] = {name: getattr(self.pre_answer, name) for name in kept}
        write_folder(folder, Stored(tensors, about), self.card)
        return folder

    @property
    def card(self) -> str:
        """The model card, which is README.md of a saved detector."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name[0] != "_"}
        return model_card(own | {"datasets": self.datasets, "caution": self.caution})

    @cached_property
    def id(self) -> str:
        """A hash of 12 hex digits of the detector's name, weights, calibration and threshold."""
        digest = hashlib.sha256(f"{self.name} {self.method.calibration_} {self.threshold}".encode())
        for name, array in sorted(self.method.arrays().items()):
            digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()[:12]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets whose prompts it knows; every question uses the prompt of one of them."""
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
    def reads_states_alone(self) -> bool:
        """Whether the score comes from clean states and nothing else."""
        return isinstance(self.method, Probes) and not self.method.reads_tokens

    # --- Scores of answers that were read ---

    def outcome(self, probability: float, distance: float = np.nan) -> tuple[Outcome, str]:
        """The conclusion about an answer with this probability of being wrong, and a reason."""
        return _conclude(probability, self.band or (self.threshold, self.threshold), distance)

    def score_of(self, material: Material) -> tuple[np.ndarray, np.ndarray]:
        """Score and calibrated probability of each answer of the material, [question] each."""
        score = self.method.decision_function(material)
        return score, self.method.calibration_.probability(score)

    def score_located(
        self,
        answers: Sequence[LocatedAnswer],
        clean: np.ndarray,
        drawn: Sequence[SampledAnswers] = (),
    ) -> list[Scored]:
        """Score answers by the states [entity, layer, width] at the last token of each entity.

        `drawn` are the sampled answers beside each one, for detectors that compare them.
        """
        material = _material(answers, clean, drawn)
        nan = np.full(len(clean), np.nan)
        score, probability, distance, is_q = nan, nan, nan, nan
        belief = np.empty((len(clean), 0))
        if len(clean):
            score, probability = self.score_of(material)
            if self.distance is not None:
                distance = self.distance.place(clean[:, self.distance.layer - 1])
        if self.beliefs is not None:
            belief, is_q = self.beliefs.wrong(clean), self.beliefs.question_anchored(clean)
        out, start = [], 0
        for one in answers:
            own = range(start, start + len(one.entities))
            start += len(one.entities)
            unread = self._unread(one.question, one.text)
            if not own:
                out.append(unread)
                continue
            if not np.isfinite(probability[own]).all():
                raise UserError(
                    f"The answer {one.text!r} got no finite score: the model's state "
                    "overflows in this dtype. Use float32."
                )
            spans, reasons = [], []
            for n, at in enumerate(own):
                chance = float(probability[at])
                outcome, reason = self.outcome(chance, distance[at])
                if not one.as_trained and self.prompt["style"] != "given":
                    outcome, reason = "cannot say", _IN_PLACE
                begin, end = one.entities[n].span
                text = one.text[begin:end]
                spans.append(ScoredSpan(begin, end, text, "entity", chance, outcome))
                reasons.append(reason)
            worst = max(range(len(own)), key=lambda n: spans[n].weight)
            at, q = own[worst], float(is_q[own[worst]])
            out.append(
                replace(
                    unread,
                    answer_entity=spans[worst].text,
                    probability=float(probability[at]),
                    score=float(score[at]),
                    outcome=spans[worst].outcome,
                    reason=reasons[worst],
                    spans=_with_sentences(one, spans),
                    predicted_pathway="" if np.isnan(q) else "Q" if q > 0.5 else "A",
                    predicted_pathway_probability=max(q, 1 - q),
                    distance=float(distance[at]),
                    belief=tuple(belief[at].tolist()),
                )
            )
        return out

    def _unread(self, question: str, text: str, too_long: str = "") -> Scored:
        declines = bool(plain(text)) and is_abstention(text)
        nothing = "declines to answer" if declines else "holds no entity to read"
        on = f"{self.trained_on['answers']} answers of {', '.join(self.trained_on['datasets'])}"
        if self.promise is not None:
            on += f"; threshold on {self.promise.entities} other entities"
        return Scored(
            question=question,
            answer=text,
            answer_entity="",
            probability=np.nan,
            score=np.nan,
            outcome="cannot say" if too_long else "no answer",
            reason=too_long or f"the answer {nothing}",
            detector=self.id,
            threshold=self.threshold,
            calibrated_on=on,
        )

    def read(
        self,
        answerer: Answerer,
        prefix_of: PrefixOf,
        tasks: Sequence[Task],
        *,
        on_token: OnToken | None = None,
    ) -> Iterator[tuple[AnswerBatch, list[Scored]]]:
        """The answers of the tasks with their scores, a batch at a time; see `read_answers`."""
        drawn = {}
        # Of several spellings of an answer the likelier one counts.
        reads = self.method.reads_tokens or len({task.number for task in tasks}) < len(tasks)
        if self.method.samples_ and tasks:
            prompted = list({task.number: task for task in tasks}.values())
            with Lease(answerer.model) as lease:
                every = sample_answers(
                    lease, answerer, prefix_of, [task.prompt_ids for task in prompted],
                    [task.question for task in prompted], samples=self.method.samples_,
                    temperature=self.method.temperature_, seed=0,
                )  # fmt: skip
            for task, (answers, _) in zip(prompted, every, strict=True):
                drawn[task.number] = SampledAnswers(texts=tuple(one.text for one in answers))
        for batch in read_answers(
            answerer, prefix_of, tasks, token_log_probs=reads, on_token=on_token
        ):
            own = [drawn[number] for number in batch.numbers] if drawn else ()
            yield batch, self.score_located(batch.answers, batch.clean, own)

    # --- Answers and questions as a user gives them ---

    def score(
        self,
        model: Any,
        question: str | Sequence[str],
        *,
        answer: str | Sequence[str | None] | None = None,
        dataset: str | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Answer a question and score the answer in the same pass.

        With `answer` that answer is scored instead. Lists give lists, in batches. `dataset` is the
        training dataset whose prompt is used, where these differ.

        Examples:
            >>> scored = detector.score(model, "What is the capital of France?")
            >>> scored.answer, 0 < scored.probability < 1, len(scored.belief) == model.blocks
            ('Paris', True, True)
            >>> detector.score(model, "What is the capital of France?", answer="Lyon").answer
            'Lyon'

        """
        if isinstance(question, str):
            answers = None if answer is None else [str(answer)]
            return self.score(model, [question], answer=answers, dataset=dataset)[0]
        if answer is not None and len(answer) != len(question):
            raise UserError(f"{len(question)} questions and {len(answer)} answers were given.")
        bound = self.bind(model, dataset=dataset)
        tasks: list[Task] = []
        answers = answer or [None] * len(question)
        for number, (text, given) in enumerate(zip(question, answers, strict=True)):
            prompt = bound.checked_prompt(text, room=None if given is None else 0)
            if given is None:
                tasks.append(Task(number=number, question=text, prompt_ids=prompt.ids))
                continue
            exchange = Exchange(question=text, answer=given)
            for task in tasks_of(bound.model, bound, exchange, number, every=False):
                own = len(task.answer_ids)
                if reason := too_long(bound.model, text, len(task.prompt_ids), own):
                    raise UserError(f"{reason}. Shorten it, or leave it out.")
                tasks.append(task)
        return self._scored(bound.answerer, bound.prefix, tasks, {}, progress)

    def score_answers(
        self,
        model: Any,
        exchanges: Sequence[Exchange],
        *,
        dataset: str | None = None,
        progress: Progress | None = None,
    ) -> list[Scored]:
        """Score given answers to prompts or chat messages, every entity of each, in one pass.

        Prompt and answer are fed once, an answer with one entity as that entity alone. Of answers
        with several a detector of short answers gives probabilities and no firm outcome. `dataset`
        is as in `score`.

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
            answerer = Answerer(model, max_tokens=int(self.prompt["max_tokens"]))
        else:
            model, answerer = bound.model, bound.answerer
        fitting, unread = [], {}
        for number, one in enumerate(exchanges):
            own = tasks_of(model, bound, one, number, every=one.answer is not None)
            longest = max(own, key=lambda task: len(task.answer_ids))
            prompt, answer = len(longest.prompt_ids), len(longest.answer_ids)
            if reason := too_long(model, longest.question, prompt, answer):
                unread[number] = self._unread(longest.question, one.answer or "", reason)
            else:
                fitting += own
        prefix_of = bound.prefix if bound else common_prefix(fitting)
        return self._scored(answerer, prefix_of, fitting, unread, progress)

    def _scored(
        self,
        answerer: Answerer,
        prefix_of: PrefixOf,
        tasks: Sequence[Task],
        found: dict[int, Scored],
        progress: Progress | None,
    ) -> list[Scored]:
        """Score the tasks, add them to the scores `found` already; all by number of their task.

        Of tasks with one number the answer with the highest mean log-probability counts.
        """
        progress = progress or Quiet()
        progress.start("scores", len(tasks))
        likelihood: dict[int, float] = {}
        for batch, scored in self.read(answerer, prefix_of, tasks):
            for number, one, score in zip(batch.numbers, batch.answers, scored, strict=True):
                mean = float(np.mean(one.answer.log_probs or (np.nan,)))
                if number not in likelihood or mean > likelihood[number]:
                    found[number], likelihood[number] = score, mean
            progress.advance(len(scored))
        return [found[number] for number in sorted(found)]

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
        shape = (len(token_ids), self.model["blocks"], self.model["width"])
        if states.shape != shape:
            raise UserError(
                f"States of the shape {states.shape} were given. Accepted: [token, layer, width] = "
                f"{shape}, a state after every block for each token of the answer."
            )
        if self.method.samples_:
            raise UserError(f"The detector '{self.name}' draws answers, which needs the model.")
        if self.method.reads_tokens and len(log_probs or ()) != len(token_ids):
            raise UserError(
                f"The detector '{self.name}' reads how likely each token was. Give log_probs, "
                f"{len(token_ids)} numbers, or train with method='probe'."
            )
        text = tokenizer.decode(list(token_ids), skip_special_tokens=True)
        answer = unread_answer("0", text.strip(), token_ids)
        if log_probs is not None:
            answer = replace(answer, log_probs=tuple(map(float, log_probs)))
        located = locate_answer(
            cast(Model, SimpleNamespace(tokenizer=tokenizer)), question, answer, every=True
        )
        single = single_entity(answer.text, question=question, every=True)
        begins = single is not None and single.span.start == 0  # no later word changes its state
        located = replace(located, as_trained=begins)
        places = [entity.tokens[-1] for entity in located.entities]
        kept = states[places].astype(np.float16).astype(np.float32)  # as a run folder keeps them
        return self.score_located([located], kept)[0]

    def warn(self, model: Any, question: str | Sequence[str], *, dataset: str | None = None) -> Any:
        """Predict from the question alone how likely its answer is wrong; lists give lists."""
        if self.pre_answer is None:
            raise UserError(
                "This detector has no warning before the answer: the run it was trained on kept no "
                "states of the question. Train one on a run of `anchorscope detect collect`."
            )
        if isinstance(question, str):
            return self.warn(model, [question], dataset=dataset)[0]
        probe, bound = self.pre_answer, self.bind(model, dataset=dataset)
        prompts = []
        for text in question:  # up to the last token of the question
            prompt = bound.checked_prompt(text)
            prompts.append(prompt.ids[: tokens_of([prompt.question], prompt.offsets)[-1] + 1])
        states = read_prompt_ends(bound.model, bound.prefix, prompts, layer=probe.layer)
        distances = np.full(len(prompts), np.nan)
        if probe.distance is not None and len(states):
            distances = probe.distance.place(states)
        out = []
        for text, chance, far in zip(question, probe.probability(states), distances, strict=True):
            band = min(probe.threshold, 0.5), max(probe.threshold, 0.5)
            outcome, reason = _conclude(float(chance), band, far)
            out.append(
                Warned(
                    question=text,
                    probability=float(chance),
                    outcome=outcome,
                    reason=reason,
                    threshold=probe.threshold,
                    distance=float(far),
                    detector=self.id,
                )
            )
        return out

    def bind(self, model: Any, *, dataset: str | None = None) -> Bound:
        """Bind the detector's prompt to a model, cached; a UserError if they do not fit.

        `dataset` is one of `datasets`; it may be left out if all of them have the same prompt.
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
            check_made_for(self.model, model)
            bound = found[dataset] = bind(model, self.prompt, self.examples, dataset)
        return bound


def _conclude(
    probability: float, band: tuple[float, float], distance: float
) -> tuple[Outcome, str]:
    """The outcome of a probability of being wrong, and the reason where it is "cannot say"."""
    low, high = band
    if reason := far_reason(distance):
        return "cannot say", reason
    if probability > high:
        return "wrong", ""
    if probability <= low:
        return "right", ""
    return "cannot say", (
        f"its probability {probability:.2f} is between {low:.2f} and {high:.2f}, near one half "
        "or where other training answers would have put the threshold on either side"
    )


def _with_sentences(one: LocatedAnswer, entities: Sequence[ScoredSpan]) -> tuple[ScoredSpan, ...]:
    """The spans of all sentences, each scored as its worst entity and followed by its entities."""
    spans = []
    for sentence in dict.fromkeys(entity.sentence for entity in one.entities):
        found = [
            span
            for span, entity in zip(entities, one.entities, strict=True)
            if entity.sentence == sentence
        ]
        start, stop = sentence
        text, worst = one.text[start:stop], max(found, key=lambda span: span.weight)
        spans += [replace(worst, start=start, end=stop, text=text, kind="sentence"), *found]
    return tuple(spans)


def loaded_model(model: Any, made_for: Mapping[str, Any]) -> Model:
    """The loaded model; a UserError if only its name was given."""
    if isinstance(model, str | Path):
        raise UserError(
            f"The model was given by name ('{model}'), which would load it for every call. "
            f"Load it once: load_model('{model}', dtype='{made_for.get('dtype')}')."
        )
    return load_model(model)


def _material(
    answers: Sequence[LocatedAnswer], clean: np.ndarray, drawn: Sequence[SampledAnswers]
) -> Material:
    """The entities of new answers as a detector's material; states [entity, layer, width]."""
    texts = tuple(
        Text(
            id=one.answer.id,
            question=one.question,
            answer=one.answer.text,
            log_probs=one.answer.log_probs,
            exact_answer=entity.tokens,
            first_entropy=one.answer.first_entropy,
            sampled=drawn[n] if drawn else None,
        )
        for n, one in enumerate(answers)
        for entity in one.entities
    )
    layers = clean.shape[1]
    states = {("clean", layer): clean[:, layer - 1] for layer in range(1, layers + 1)}
    return Material(
        name="scored",
        texts=texts,
        z=np.full(len(texts), -1),
        bank=Arrays(states, layers=layers),
        rows=np.arange(len(texts)),
    )


class RunningScore:
    """P(wrong) of an answer that is still being written, as if it ended with its newest token.

    By the detector itself where it reads clean states alone, else by the calibrated probe of the
    layer that its training chose. Both cost one product with a state that is computed anyway.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self.by, self.layers = "", (1,)  # one at least: a token is recorded with its states
        if detector.reads_states_alone:
            self.by, self.layers = f"detector {detector.name}", detector.method.layers()
        elif detector.beliefs is not None:
            self.by = f"probe of layer {detector.beliefs.gate_layer}"
            self.layers = (detector.beliefs.gate_layer,)

    def probabilities(self, states: np.ndarray) -> np.ndarray:
        """P(wrong) from states [token, layer, width] of `layers`, [token]; NaN without a probe."""
        method, beliefs = self._detector.method, self._detector.beliefs
        if self._detector.reads_states_alone:
            logit = cast(Probes, method).logit(list(states.swapaxes(0, 1)))
            return method.calibration_.probability(logit)
        if beliefs is None:
            return np.full(len(states), np.nan)
        return beliefs.wrong_at(beliefs.gate_layer, states[:, 0])

    def fields(self, states: np.ndarray) -> dict[str, object]:
        """The running score as JSON: probability, flag and source, from states [layer, width]."""
        probability = float(self.probabilities(states[None])[0])
        finite = bool(np.isfinite(probability))
        flagged = probability > self._detector.threshold if finite else None
        return {"probability": probability if finite else None, "flagged": flagged, "by": self.by}
