"""Prompts and answers given by others, as tokens: chat messages by the template, or raw text."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorscope.detect.deployed.bind import Bound, answer_tokens
from anchorscope.detect.deployed.read_answers import Task
from anchorscope.engine.decode import Prefix, read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import PromptPart, has_chat, short, window_of

ROLES = ("system", "user", "assistant", "tool", "developer")


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
