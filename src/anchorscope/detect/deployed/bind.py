"""Check that a detector belongs to a model, and build its prompts for new questions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorscope.answers.generate import Answerer
from anchorscope.detect.deployed.read_answers import Task
from anchorscope.engine.decode import Prefix, read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError, unknown
from anchorscope.models import Model
from anchorscope.models.prompts import (
    Prompt,
    PromptPart,
    short,
    stop_ids,
    tokenise,
    window_of,
)
from anchorscope.records import Span
from anchorscope.run_folder.identity import weights_hash
from anchorscope.spans.characters import tokens_of

_LABEL = re.compile(r"\s*[\r\n]\s*(?=(?:Q|A|Question|Answer)\s*:)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question and the very tokens it was asked with: the prompt, and a test of the tokenizer."""

    question: str
    prompt_ids: tuple[int, ...]
    dataset: str = ""  # whose worked examples come first


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
        pieces, start = self._pieces(question), len(self.before)
        coded = tokenise(self.model.tokenizer, [pieces], special=False)[0]
        stop = start + len(pieces[1].text)
        return Prompt(ids=coded.ids, offsets=coded.offsets, question=Span(start, stop))

    def checked_prompt(self, question: str, answer: Sequence[int] | None = None) -> Prompt:
        """The prompt for a question; an error where the question is empty or too long.

        `answer` are the tokens of a given answer; without them room is left for a written one.
        """
        if not question.strip():
            raise UserError(f"The question {question!r} is empty. Give the text of a question.")
        prompt, window = self.prompt(question), window_of(self.model)
        if not tokens_of([prompt.question], prompt.offsets):
            raise UserError(
                f"The question {short(question)} has no token of its own in the prompt: the "
                "tokenizer drops its characters. Leave it out, or use another model."
            )
        follows = self.answerer.max_tokens if answer is None else len(answer)
        if window is not None and len(prompt.ids) + follows > window:
            raise UserError(
                f"The question {short(question)} needs a prompt of {len(prompt.ids)} tokens and an "
                f"answer of {follows} tokens; {self.model.name} reads {window} in all. Shorten it, "
                "or leave it out."
            )
        return prompt

    def answer_tokens(self, question: str, answer: str) -> tuple[int, ...]:
        """The tokens of an answer that follows the prompt."""
        return answer_tokens(self.model.tokenizer, self._pieces(question), answer)[1]

    def task(self, number: int, question: str, answer: str | None) -> Task:
        """The tokens of a question to answer, or of one with a given answer to read."""
        if answer is None:
            ids = self.checked_prompt(question).ids
            return Task(number=number, question=question, prompt_ids=ids)
        own = self.answer_tokens(question, answer)
        return Task(
            number=number,
            question=question,
            prompt_ids=self.checked_prompt(question, own).ids,
            answer=answer,
            answer_ids=own,
        )

    def prefix(self, lease: Lease) -> Prefix:
        """The keys and values in front of every question, computed once for all calls."""
        if self._prefix is None:
            self._prefix = read_prefix(lease, self.shared)
        return self._prefix

    def _pieces(self, question: str) -> list[PromptPart]:
        # In plain text a line that begins like ours would become another worked example.
        asked = question if self.after[:1] != "\n" else _LABEL.sub(" ", question)
        return [
            PromptPart(self.before, True), PromptPart(asked, False), PromptPart(self.after, True)
        ]  # fmt: skip


def answer_tokens(
    tokenizer: Any, pieces: Sequence[PromptPart], answer: str, *, special: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of a prompt, and of the answer that follows it."""
    text = "".join(piece.text for piece in pieces)
    own = PromptPart(("" if not text or text[-1].isspace() else " ") + answer.strip(), False)
    prompt, whole = (
        one.ids for one in tokenise(tokenizer, [[*pieces], [*pieces, own]], special=special)
    )
    if whole[: len(prompt)] == prompt:
        return prompt, whole[len(prompt) :]
    # The tokenizer merged the answer's first letters into the prompt's last token.
    return prompt, tokenise(tokenizer, [[own]], special=False)[0].ids


def bind(
    model: Model,
    *,
    made_for: Mapping[str, Any],
    prompt: Mapping[str, Any],
    examples: Sequence[Example],
    dataset: str | None = None,
) -> Bound:
    """The text around a question of the dataset, found in one example and proved on all of them.

    Without a dataset, where all are asked alike, any of them serves. An error where the model is
    not the one that the detector was made for, or where the datasets differ and none is named.
    """
    check_made_for(made_for, model)
    names = tuple(dict.fromkeys(example.dataset for example in examples))
    if dataset is not None and dataset not in names:
        raise unknown("dataset of the detector", dataset, names)
    bounds = []
    for name in names if dataset is None else (dataset,):
        own = [example for example in examples if example.dataset == name]
        limit = int(prompt["max_tokens"])
        bound = bind_prompts(model, own, finder=prompt["finder"], max_tokens=limit)
        if bound is None:
            raise UserError(
                f"The tokenizer of {model.name} does not give the tokens the detector was trained "
                f"with. Use the tokenizer of {made_for['name']}, revision "
                f"{made_for.get('revision')}."
            )
        bounds.append(bound)
    if len({(bound.before, bound.after) for bound in bounds}) > 1:
        raise UserError(
            f"The detector was trained on questions asked in {len(names)} ways, each with its own "
            f"worked examples: {', '.join(names)}. Say which of them yours are like: dataset= in "
            "Python, --as on the command line."
        )
    return bounds[0]


def bind_prompts(
    model: Model, examples: Sequence[Example], *, finder: Any, max_tokens: int
) -> Bound | None:
    """How these questions were asked; None where the tokenizer does not give their very tokens."""
    text = model.tokenizer.decode(examples[0].prompt_ids, clean_up_tokenization_spaces=False)
    question, answerer = examples[0].question, Answerer(model, max_tokens=max_tokens)
    stop, prompts = frozenset(stop_ids(model)), [example.prompt_ids for example in examples]
    places = [at for at in range(len(text)) if text.startswith(question, at)]
    for at in reversed(places):  # a short question may occur in the worked examples too
        bound = Bound(
            model=model,
            before=text[:at],
            after=text[at + len(question) :],
            finder=finder,
            shared=shared_prefix(prompts, stop=len(prompts[0])),
            answerer=answerer,
            stop=stop,
        )
        if _gives_all(bound, examples):
            return bound
    return None


def _gives_all(bound: Bound, examples: Sequence[Example]) -> bool:
    """Whether these are the examples' prompts; what they share then ends before the question."""
    for example in examples:
        prompt = bound.prompt(example.question)
        own = tokens_of([prompt.question], prompt.offsets)
        if prompt.ids != example.prompt_ids or not own:
            return False
        bound.shared = bound.shared[: own[0]]
    return True


def check_made_for(made: Mapping[str, Any], model: Model) -> None:
    """Raise a UserError where the detector was made for another model or another dtype."""
    name = made["name"]
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
            f"revision {made.get('revision')}). Use that model, or "
            "train a detector for this one."
        )
