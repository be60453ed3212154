"""Prompts as tokens: of a detector's own questions, of chat messages, and of raw text."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from anchorscope.answers.generate import Answerer
from anchorscope.detect.read_answers import Task
from anchorscope.engine.decode import Prefix, read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError, short, unknown
from anchorscope.models import Model
from anchorscope.models.prompts import (
    Prompt,
    PromptPart,
    has_chat,
    tokenise,
    window_of,
)
from anchorscope.records import Span
from anchorscope.run_folder.identity import weights_hash
from anchorscope.spans.characters import tokens_of

ROLES = ("system", "user", "assistant", "tool", "developer")
_LABEL = re.compile(r"\s*[\r\n]\s*(?=(?:Q|A|Question|Answer)\s*:)", re.IGNORECASE)
_Token = Annotated[int, Field(ge=0, le=1 << 31)]


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question and the very tokens it was asked with: the prompt, and a test of the tokenizer."""

    question: Annotated[str, Field(min_length=1, max_length=100_000)]
    prompt_ids: Annotated[tuple[_Token, ...], Field(min_length=1, max_length=1 << 20)]
    dataset: Annotated[str, Field(max_length=1000)] = ""  # whose worked examples come first


@dataclass
class Bound:
    """The prompt of a detector as text around the question, for one model."""

    model: Model
    before: str
    after: str
    finder: Any
    shared: tuple[int, ...]  # the tokens in front of every question
    answerer: Answerer  # kept: which of all tokens end an answer is slow to find out
    _prefix: Prefix | None = field(default=None, repr=False)

    def prompt(self, question: str) -> Prompt:
        """The prompt for a question."""
        pieces, start = self._pieces(question), len(self.before)
        coded = tokenise(self.model.tokenizer, [pieces], special=False)[0]
        stop = start + len(pieces[1].text)
        return Prompt(ids=coded.ids, offsets=coded.offsets, question=Span(start, stop))

    def checked_prompt(self, question: str, room: int | None = None) -> Prompt:
        """The prompt for a question; an error where the question is empty or too long.

        `room` are the tokens of a given answer; without it there is room for a written one.
        """
        if not question.strip():
            raise UserError(f"The question {question!r} is empty. Give the text of a question.")
        prompt, window = self.prompt(question), window_of(self.model)
        if not tokens_of([prompt.question], prompt.offsets):
            raise UserError(
                f"The question {short(question)} has no token of its own in the prompt: the "
                "tokenizer drops its characters. Leave it out, or use another model."
            )
        follows = self.answerer.max_tokens if room is None else room
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

    def prefix(self, lease: Lease) -> Prefix:
        """The keys and values in front of every question, computed once for all calls."""
        if self._prefix is None:
            self._prefix = read_prefix(lease, self.shared)
        return self._prefix

    def _pieces(self, question: str) -> list[PromptPart]:
        # In plain text a line that begins like ours would become another worked example.
        own = question if self.after[:1] != "\n" else _LABEL.sub(" ", question)
        return [
            PromptPart(self.before, True), PromptPart(own, False), PromptPart(self.after, True)
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
    prompts = [example.prompt_ids for example in examples]
    places = [at for at in range(len(text)) if text.startswith(question, at)]
    for at in reversed(places):  # a short question may occur in the worked examples too
        bound = Bound(
            model=model,
            before=text[:at],
            after=text[at + len(question) :],
            finder=finder,
            shared=shared_prefix(prompts, stop=len(prompts[0])),
            answerer=answerer,
        )
        for example in examples:  # what they share ends before the question
            prompt = bound.prompt(example.question)
            own = tokens_of([prompt.question], prompt.offsets)
            if prompt.ids != example.prompt_ids or not own:
                break
            bound.shared = bound.shared[: own[0]]
        else:
            return bound
    return None


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


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An answer and what it answers: a question, messages of a chat, or the raw text before it.

    A `question` is asked with the prompt that the detector was trained with. `messages` have a
    role and a content each and go through the model's chat template; one user's turn alone is
    taken for a question where the detector was trained on questions.
    """

    answer: str
    question: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    prompt: str = ""

    def __post_init__(self) -> None:
        if sum(bool(given) for given in (self.question, self.messages, self.prompt)) != 1:
            raise UserError(
                "An exchange needs what was answered, in one form: `question`, `messages` or "
                "`prompt`."
            )
        for turn in self.messages:
            if turn.get("role") not in ROLES or not isinstance(turn.get("content"), str):
                raise UserError(
                    f"The message {short(str(turn))} is not understood. A message has a `role` "
                    f"({', '.join(ROLES)}) and a `content`, which is a text."
                )

    @property
    def asked(self) -> str:
        """The text that is answered: the question, the user's last turn, or the raw prompt."""
        users = [str(turn["content"]) for turn in self.messages if turn["role"] == "user"]
        return self.question or self.prompt or (users[-1] if users else "")


def task_of(model: Model, bound: Bound | None, exchange: Exchange, number: int) -> Task:
    """The tokens of an exchange; `bound` is the prompt for questions, where there is one."""
    question = exchange.question
    if bound is not None and len(exchange.messages) == 1:
        question = exchange.asked
    if question:
        if bound is None:
            raise UserError(
                "This detector was trained on given prompts, not on questions that it asks "
                "itself. Give `messages` or `prompt` instead of `question`."
            )
        prompt_ids = bound.prompt(question).ids
        ids = bound.answer_tokens(question, exchange.answer)
    else:
        question = exchange.asked
        pieces, special = _pieces(model, exchange)
        prompt_ids, ids = answer_tokens(model.tokenizer, pieces, exchange.answer, special=special)
    return Task(
        number=number,
        question=question,
        prompt_ids=prompt_ids,
        answer=exchange.answer.strip(),
        answer_ids=ids,
        every=True,
    )


def too_long(model: Model, task: Task) -> str:
    """Why the model cannot read prompt and answer; empty where it can."""
    tokens, window = len(task.prompt_ids) + len(task.answer_ids), window_of(model)
    if window is None or tokens <= window:
        return ""
    return f"prompt and answer have {tokens} tokens, and {model.name} reads {window}"


def _pieces(model: Model, exchange: Exchange) -> tuple[list[PromptPart], bool]:
    """The text before the answer, others' parts apart, and whether special tokens are added."""
    if exchange.prompt:
        return [PromptPart(exchange.prompt, False)], True
    if not has_chat(model):
        raise UserError(
            f"{model.name} has no chat template, which `messages` need. Give the raw text before "
            "the answer as `prompt`."
        )
    # The template writes around marks, so that nothing in a message can end a turn.
    marks = [f"x{secrets.token_hex(8)}x" for _ in exchange.messages]
    turns = [{**turn, "content": mark} for turn, mark in zip(exchange.messages, marks, strict=True)]
    try:
        rest = model.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except Exception as error:  # templates raise what they like
        raise UserError(
            f"The chat template of {model.name} refuses these messages ({error}). Give the raw "
            "text before the answer as `prompt`."
        ) from error
    pieces = []
    for turn, mark in zip(exchange.messages, marks, strict=True):
        own, found, rest = rest.partition(mark)
        if not found or mark in rest:
            raise UserError(
                f"The chat template of {model.name} does not write each message once. Give the raw "
                "text before the answer as `prompt`."
            )
        pieces += [PromptPart(own, True), PromptPart(str(turn["content"]), False)]
    return [*pieces, PromptPart(rest, True)], False


def common_prefix(tasks: Sequence[Task]) -> Callable[[Lease], Prefix]:
    """What reads the tokens that all prompts begin with, once for all batches."""
    prompts = [task.prompt_ids for task in tasks]
    stop = min((len(prompt) for prompt in prompts), default=1) - 1
    ids = shared_prefix(prompts, stop=stop) if len(prompts) > 1 else ()
    found: list[Prefix] = []

    def prefix(lease: Lease) -> Prefix:
        if not found:
            found.append(read_prefix(lease, ids) if ids else Prefix((), None))
        return found[0]

    return prefix
