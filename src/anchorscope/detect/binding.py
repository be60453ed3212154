"""A detector and a model, proved to belong together before anything is scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorscope.answers.generate import Answerer
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix, read_prefix, shared_prefix
from anchorscope.errors import UserError
from anchorscope.identity import weights_hash
from anchorscope.models import Model, load_model
from anchorscope.models.prompts import Prompt, stop_ids
from anchorscope.records import Question, Span
from anchorscope.spans.question import find_spans
from anchorscope.spans.tokens import tokens_of

if TYPE_CHECKING:
    from anchorscope.detect.detector import Detector


@dataclass
class Bound:
    """The prompt of a detector as text around the question, for one model."""

    model: Model
    before: str
    after: str
    finder: Any
    shared: tuple[int, ...]  # the tokens in front of every question
    answerer: Answerer  # kept: which of all tokens end an answer is slow to find out
    stop: frozenset[int]  # those tokens
    _prefix: Prefix | None = field(default=None, repr=False)

    def prompt(self, question: str) -> Prompt:
        """The prompt for a question."""
        text = self.before + question + self.after
        coded = self.model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        start = len(self.before)
        return Prompt(
            ids=tuple(coded["input_ids"]),
            offsets=tuple(Span(*pair) for pair in coded["offset_mapping"]),
            question=Span(start, start + len(question)),
        )

    def exact(self, question: str, prompt: Prompt) -> tuple[int, ...]:
        """E_Q: the positions of the exact question tokens in the prompt."""
        asked = Question(id="", dataset="", text=question, answers=())
        finder = "auto" if self.finder in ("given", "model", "spacy") else self.finder
        (found,) = find_spans([asked], finder=finder)
        return tokens_of(found.spans, prompt.question_offsets())

    def prefix(self, lease: Lease) -> Prefix:
        """The keys and values in front of every question, computed once for all calls."""
        if self._prefix is None:
            self._prefix = read_prefix(lease, self.shared)
        return self._prefix


def bind(detector: Detector, model: Any) -> Bound:
    """The detector's prompt for this model; an error where they do not belong together."""
    if isinstance(model, str | Path):
        raise UserError(
            f"The model was given by name ('{model}'), which would load it for every call. "
            f"Load it once: load_model('{model}', dtype='{detector.model.get('dtype')}')."
        )
    model = load_model(model)
    known = detector._bound.get(model.lm)
    if known is None or known.model.tokenizer is not model.tokenizer:
        check_model(detector, model)
        known = detector._bound[model.lm] = _bound(detector, model)
    return known


def check_model(detector: Detector, model: Model) -> None:
    """Raise a UserError where the detector was made for another model or another dtype."""
    made, name = detector.model, detector.model["name"]
    shape = (model.blocks, model.parts.width)
    if (made.get("blocks"), made.get("width")) != shape:
        raise UserError(
            f"The detector was made for {name} ({made.get('blocks')} blocks of width "
            f"{made.get('width')}); {model.name} has {shape[0]} of {shape[1]}. Use {name}."
        )
    dtype = str(model.dtype).removeprefix("torch.")
    if made.get("dtype") != dtype:
        raise UserError(
            f"The detector was made for {name} in {made.get('dtype')}; this one is in {dtype}. "
            f"Load the model with dtype={made.get('dtype')!r}, or train a detector for {dtype}."
        )
    if made.get("weights") != weights_hash(model.lm):
        raise UserError(
            f"The weights of {model.name} are not those the detector was made for ({name}, "
            f"revision {made.get('revision')}). Use that model, or train a detector for this one."
        )


def _bound(detector: Detector, model: Model) -> Bound:
    """The text around the question, found in one example and proved on all of them."""
    examples = detector.examples
    text = _decode(model, examples[0].prompt_ids)
    at = text.rfind(examples[0].question)
    if at < 0:
        raise _other_tokenizer(detector, model)
    stop = at + len(examples[0].question)
    shared = shared_prefix([e.prompt_ids for e in examples], stop=len(examples[0].prompt_ids))
    bound = Bound(
        model=model,
        before=text[:at],
        after=text[stop:],
        finder=detector.prompt["finder"],
        shared=shared,
        answerer=Answerer(model, max_tokens=int(detector.prompt["max_tokens"])),
        stop=frozenset(stop_ids(model)),
    )
    for example in examples:
        prompt = bound.prompt(example.question)
        if prompt.ids != example.prompt_ids:
            raise _other_tokenizer(detector, model)
        own = tokens_of([Span(0, len(example.question))], prompt.question_offsets())
        bound.shared = bound.shared[: own[0]]
    return bound


def _decode(model: Model, ids: tuple[int, ...]) -> str:
    return model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def _other_tokenizer(detector: Detector, model: Model) -> UserError:
    return UserError(
        f"The tokenizer of {model.name} does not give the tokens the detector was trained with. "
        f"Use the tokenizer of {detector.model['name']}, revision {detector.model.get('revision')}."
    )
