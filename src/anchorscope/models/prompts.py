"""Prompts: the same few-shot question as chat turns or as plain `Q:`/`A:` text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anchorscope.errors import UserError
from anchorscope.models.load import Model
from anchorscope.records import Shot, Span

PromptStyle = Literal["auto", "chat", "text"]
_NO_THINKING = {"enable_thinking": False}  # read by templates that know it, ignored by the others


@dataclass(frozen=True)
class Prompt:
    """A prompt as tokens, and which characters each token covers."""

    ids: tuple[int, ...]
    offsets: tuple[Span, ...]  # characters of the whole prompt text
    question: Span  # where the question stands in that text

    def question_offsets(self) -> list[Span]:
        """The tokens' offsets counted from the question's first character."""
        start = self.question.start
        return [Span(a - start, b - start) for a, b in self.offsets]


def make_prompt(model: Model, question: str, *, shots: Sequence[Shot], style: str) -> Prompt:
    """The prompt for a question in a settled style, `chat` or `text`."""
    if style == "chat":
        text = _chat(model.tokenizer, question, shots)
    else:
        text = "".join(f"Q: {shot.question}\nA: {shot.answer}\n\n" for shot in shots)
        text += f"Q: {question}\nA:"
    start = text.rfind(question)
    if start < 0:
        raise UserError(
            f"The chat template of {model.name} changes the question {question!r}, so its tokens "
            "cannot be found. Use the prompt style `text`."
        )
    # A chat template writes its own special tokens; plain text gets the tokenizer's.
    coded = model.tokenizer(
        text, add_special_tokens=style == "text", return_offsets_mapping=True, verbose=False
    )
    return Prompt(
        ids=tuple(coded["input_ids"]),
        offsets=tuple(Span(*pair) for pair in coded["offset_mapping"]),
        question=Span(start, start + len(question)),
    )


def has_chat(model: Model) -> bool:
    """Whether the tokenizer brings a chat template."""
    return bool(getattr(model.tokenizer, "chat_template", None))


def stop_ids(model: Model) -> list[int]:
    """The tokens that end an answer: every end-of-text token, and every token with a line end."""
    tokenizer = model.tokenizer
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    lines = {i for token, i in vocabulary.items() if "Ċ" in token or "\n" in token}
    lines |= {i for token, i in vocabulary.items() if token == "<0x0A>"}
    ends = getattr(model.lm.generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    named = (
        tokenizer.eos_token_id,
        *(vocabulary.get(name) for name in ("<|im_end|>", "<|eot_id|>")),
    )
    return sorted(lines | {i for i in (*ends, *named) if i is not None})


def _chat(tokenizer: Any, question: str, shots: Sequence[Shot]) -> str:
    turns = []
    for shot in shots:
        turns.append({"role": "user", "content": shot.question})
        turns.append({"role": "assistant", "content": shot.answer})
    turns.append({"role": "user", "content": question})
    return tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True, **_NO_THINKING
    )
