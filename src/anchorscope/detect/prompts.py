"""Tokenise prompts: a detector's own questions, chat messages, and raw text."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from anchorscope.answers.generate import Answerer
from anchorscope.detect.answer_parts import single_entity
from anchorscope.detect.read_answers import PrefixOf, Task
from anchorscope.engine.decode import Prefix, read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError, short, unknown
from anchorscope.models import Model
from anchorscope.models.prompts import (
    Prompt,
    PromptPart,
    answer_tokens,
    has_chat,
    tokenise,
    too_long,
)
from anchorscope.records import Sample, Span
from anchorscope.run_folder.identity import weights_hash
from anchorscope.spans.characters import tokens_of

ROLES = ("system", "user", "assistant", "tool", "developer")
_LABEL = re.compile(r"\s*[\r\n]\s*(?=(?:Q|A|Question|Answer)\s*:)", re.IGNORECASE)
_Token = Annotated[int, Field(ge=0, le=1 << 31)]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An answer and its prompt: a question, messages of a chat, or the raw text before it.

    A `question` is asked with the prompt that the detector was trained with; without an `answer`
    the model writes one. `messages` have a role and a content each and go through the model's chat
    template; a single user's turn counts as a question if the detector was trained on questions.
    """

    answer: str | None = None
    question: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    prompt: str = ""

    def __post_init__(self) -> None:
        texts = [("question", self.question), ("prompt", self.prompt)]
        given = [(name, value) for name, value in texts if value not in (None, "")]
        whole = all(isinstance(text, str) and text.strip() for _, text in given)
        given += [("messages", value) for value in [self.messages] if value]
        if len(given) != 1 or not whole or not isinstance(self.answer, str | None):
            found = [f"the `{name}` {short(str(value))}" for name, value in given]
            raise UserError(
                f"Given: {' and '.join(found) or 'no prompt'}, and the `answer` "
                f"{short(str(self.answer))}. An exchange needs one of `question`, `messages` and "
                "`prompt`, and an `answer`; question, prompt and answer are texts."
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


# --- The prompt of a detector's own questions ---


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question and the tokens of its prompt, from which `bind` restores the prompt's text."""

    question: Annotated[str, Field(min_length=1, max_length=100_000)]
    prompt_ids: Annotated[tuple[_Token, ...], Field(min_length=1, max_length=1 << 20)]
    dataset: Annotated[str, Field(max_length=1000)] = ""  # whose worked examples come first


@dataclass
class Bound:
    """A detector's prompt bound to a model: the text before and after the question."""

    model: Model
    before: str
    after: str
    finder: Any
    shared: tuple[int, ...]  # the tokens in front of every question
    answerer: Answerer  # kept, since finding the tokens that end an answer is slow
    _prefix: Prefix | None = field(default=None, repr=False)

    def pieces(self, question: str) -> list[PromptPart]:
        """The text of a question's prompt in parts: before, the question, after."""
        # In plain text a line that begins like ours would become another worked example.
        own = question if self.after[:1] != "\n" else _LABEL.sub(" ", question)
        return [
            PromptPart(self.before, True), PromptPart(own, False), PromptPart(self.after, True)
        ]  # fmt: skip

    def prompt(self, question: str) -> Prompt:
        """The tokenised prompt of a question."""
        pieces, start = self.pieces(question), len(self.before)
        coded = tokenise(self.model.tokenizer, [pieces], special=False)[0]
        stop = start + len(pieces[1].text)
        return Prompt(ids=coded.ids, offsets=coded.offsets, question=Span(start, stop))

    def checked_prompt(self, question: str, room: int | None = None) -> Prompt:
        """The tokenised prompt of a question; a UserError if the question is empty or too long.

        `room` is the number of tokens that may follow, by default the most that are generated.
        """
        if not question.strip():
            raise UserError(f"The question {question!r} is empty. Give the text of a question.")
        prompt = self.prompt(question)
        if not tokens_of([prompt.question], prompt.offsets):
            raise UserError(
                f"The question {short(question)} has no token of its own in the prompt: the "
                "tokenizer drops its characters. Leave it out, or use another model."
            )
        follows = self.answerer.max_tokens if room is None else room
        if reason := too_long(self.model, question, len(prompt.ids), follows):
            raise UserError(f"{reason}. Shorten it, or leave it out.")
        return prompt

    def prefix(self, lease: Lease) -> Prefix:
        """The cached keys and values of the tokens in front of every question, computed once."""
        if self._prefix is None:
            self._prefix = read_prefix(lease, self.shared)
        return self._prefix


def bind(
    model: Model, prompt: Mapping[str, Any], examples: Sequence[Example], dataset: str | None
) -> Bound:
    """Restore the prompt of a dataset from its examples, checked on all of them.

    The dataset may be left out if all datasets have the same prompt.
    """
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
                f"The tokenizer of {model.name} does not give the tokens that the detector was "
                "trained with. Use the tokenizer and revision of its model."
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
    """Restore a prompt from examples; None if the tokenizer does not reproduce their tokens."""
    text = model.tokenizer.decode(examples[0].prompt_ids, clean_up_tokenization_spaces=False)
    question, answerer = examples[0].question, Answerer(model, max_tokens=max_tokens)
    prompts = [example.prompt_ids for example in examples]
    places = [at for at in range(len(text)) if text.startswith(question, at)]
    for at in reversed(places):  # a short question may occur in the worked examples too
        before, after = text[:at], text[at + len(question) :]
        shared = shared_prefix(prompts, stop=len(prompts[0]))
        bound = Bound(model, before, after, finder, shared, answerer)
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
    """Raise a UserError if the detector was made for another model or another dtype."""

    def described(facts: Mapping[str, Any]) -> str:
        return (
            f"{facts['name']} in {facts.get('dtype')} ({facts.get('blocks')} blocks of width "
            f"{facts.get('width')}, weights {facts.get('weights')})"
        )

    own = {
        "name": model.name, "dtype": str(model.dtype).removeprefix("torch."),
        "blocks": model.blocks, "width": model.parts.width, "weights": weights_hash(model.lm),
    }  # fmt: skip
    if any(made.get(name) != own[name] for name in ("blocks", "width", "dtype", "weights")):
        raise UserError(
            f"The detector was made for {described(made)}; this model is {described(own)}. Load "
            f"the first with dtype={made.get('dtype')!r}, or train a detector for this one."
        )


# --- Exchanges as tokens ---


def tasks_of(
    model: Model, bound: Bound | None, exchange: Exchange, number: int, *, every: bool = True
) -> list[Task]:
    """Tokenise an exchange; `bound` is the prompt of a detector of questions, if it is one.

    For such a detector a given answer with one entity is read as that entity: a task for each of
    its spellings.
    """
    question, special, answer = exchange.question, False, exchange.answer
    if bound is not None and len(exchange.messages) == 1:
        question = exchange.asked
    if not question:
        question = exchange.asked
        pieces, special = _pieces(model, exchange)
    elif bound is None:
        raise UserError(
            "This detector was trained on given prompts, not on questions that it asks itself. "
            "Give `messages` or `prompt` instead of `question`."
        )
    else:
        pieces = bound.pieces(question)
    single, texts = None, [None if answer is None else answer.strip()]
    if bound is not None and texts[0]:
        single = single_entity(texts[0], question=question, every=every)
        texts = texts if single is None else single.spellings
    tasks = []
    for text in texts:
        prompt_ids, ids = answer_tokens(model.tokenizer, pieces, text or "", special=special)
        tasks.append(
            Task(number=number, question=question, prompt_ids=prompt_ids, answer=text,
                 answer_ids=() if text is None else ids, every=every, single=single)
        )  # fmt: skip
    return tasks


def _pieces(model: Model, exchange: Exchange) -> tuple[list[PromptPart], bool]:
    """The prompt in parts, trusted or not, and whether the tokenizer adds special tokens."""
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
        if any(rest.count(mark) != 1 for mark in marks) or sorted(marks, key=rest.find) != marks:
            raise ValueError("it does not write each of them once, in their order")
    except Exception as error:  # templates can raise any error
        raise UserError(
            f"The chat template of {model.name} refuses these messages ({error}). Give the raw "
            "text before the answer as `prompt`."
        ) from error
    pieces = []
    for turn, mark in zip(exchange.messages, marks, strict=True):
        own, _, rest = rest.partition(mark)
        pieces += [PromptPart(own, True), PromptPart(str(turn["content"]), False)]
    return [*pieces, PromptPart(rest, True)], False


def common_prefix(tasks: Sequence[Task | Sample]) -> PrefixOf:
    """A function that computes the keys and values of the prompts' common prefix once."""
    prompts = [task.prompt_ids for task in tasks]
    stop = min((len(prompt) for prompt in prompts), default=1) - 1
    ids = shared_prefix(prompts, stop=stop) if len(prompts) > 1 else ()
    found: list[Prefix] = []

    def prefix(lease: Lease) -> Prefix:
        if not found:
            found.append(read_prefix(lease, ids) if ids else Prefix((), None))
        return found[0]

    return prefix
