"""Generate a model's greedy and sampled answers, and choose the prompt style for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from anchorscope.engine.decode import (
    DecodedBatch,
    OnToken,
    Prefix,
    Sampling,
    read_prefix,
    shared_prefix,
    write_answers,
)
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.prompts import PromptPart, has_chat, make_prompts, stop_ids, tokenise
from anchorscope.records import Answer, DecodedAnswer, QuestionSet, Span
from anchorscope.spans.answer import answer_span

_ROWS = 32  # lines that are written together
_PIECE = 8  # the least number of tokens that are decoded together
_TORN = "\ufffd"  # what a part of a character decodes to
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class Answered(DecodedBatch):
    """A batch of answers in the order of the questions, with their states and shared trunk."""

    answers: tuple[Answer, ...]


class Answerer:
    """Generate answers with one model until its stop tokens.

    With `lines` an answer ends with its line, else where the model ends its turn.
    """

    def __init__(self, model: Model, *, max_tokens: int, lines: bool = True) -> None:
        self.model, self.max_tokens = model, max_tokens
        self._stop = torch.tensor(stop_ids(model, lines=lines), device=model.device)

    def answer(
        self,
        lease: Lease,
        prefix: Prefix,
        ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        *,
        extra_position: Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> Answered:
        """Answer the questions with these ids and prompts greedily; see `write_answers`."""
        written = write_answers(
            lease,
            prefix,
            prompts,
            stop_ids=self._stop,
            limit=self.max_tokens,
            extra_position=extra_position,
            on_token=on_token,
        )
        pairs = zip(ids, written.answers, strict=True)
        answers = tuple(self._record(id, answer) for id, answer in pairs)
        return Answered(answers, written.states, written.trunk, written.extra)

    def sample(
        self,
        lease: Lease,
        prefix: Prefix,
        ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        on_token: OnToken | None = None,
    ) -> list[list[Answer]]:
        """Sample answers to each of the questions with these ids and prompts."""
        written = write_answers(
            lease, prefix, prompts, stop_ids=self._stop, limit=self.max_tokens, sampling=sampling,
            on_token=on_token,
        )  # fmt: skip
        drawn, each = iter(written.answers), sampling.uniforms.shape[1]
        return [[self._record(id, next(drawn)) for _ in range(each)] for id in ids]

    def _record(self, id: str, decoded: DecodedAnswer) -> Answer:
        text = self.model.tokenizer.decode(decoded.token_ids, skip_special_tokens=True)
        return Answer(id=id, text=text.strip(), **vars(decoded))


def answer_offsets(model: Model, answer: Answer) -> list[Span]:
    """Find the characters of `answer.text` that each token covers.

    Generated tokens need not be those the tokenizer would choose for the text, so the text is
    decoded token by token instead of being tokenised again.
    """
    ends = _decoded_ends(model.tokenizer, answer.token_ids)
    whole = model.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    lead = len(whole) - len(whole.lstrip())
    # A part of a character decodes to a replacement mark; no token may reach beyond the text.
    ends = [min(max(end - lead, 0), len(answer.text)) for end in ends]
    starts = [0, *ends][:-1]
    return [Span(min(a, b), b) for a, b in zip(starts, ends, strict=True)]


def _decoded_ends(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Count the characters that the tokens up to each one decode to, in linear time.

    Only the last tokens are decoded each time: a token changes nothing but the character it is a
    part of and, in some tokenizers, the space before it. A piece begins where a whole character
    ended, and is decoded with some tokens in front of it. Tokens of single bytes (SentencePiece)
    stay in one piece: where one of them is torn, all of them decode to marks.
    """
    names = tokenizer.convert_ids_to_tokens(list(ids))
    ends: list[int] = []
    start = front = 0  # of the piece, and of what is decoded with it
    before = inside = 0  # characters in front of the piece, in all and as decoded with it
    for n in range(len(ids)):
        text = tokenizer.decode(ids[front : n + 1], skip_special_tokens=True)
        ends.append(before + len(text) - inside)
        whole = not text.endswith(_TORN) and not _BYTE.fullmatch(names[n] or "")
        if whole and n + 1 - start >= _PIECE:
            front, start, before = start, n + 1, ends[-1]
            inside = len(tokenizer.decode(ids[front:start], skip_special_tokens=True))
    return ends


def write_lines(lease: Lease, prompts: Sequence[str], *, max_tokens: int) -> list[str]:
    """Generate one line of text after each prompt, greedily."""
    pieces = [[PromptPart(prompt, False)] for prompt in prompts]
    coded = tokenise(lease.model.tokenizer, pieces, special=True)
    return _lines_after(lease, [one.ids for one in coded], max_tokens=max_tokens)


def _lines_after(lease: Lease, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> list[str]:
    """The line of text that the model writes after each prompt of tokens."""
    answerer = Answerer(lease.model, max_tokens=max_tokens)
    prefix = read_prefix(lease, shared_prefix(prompts, stop=min(map(len, prompts)) - 1))
    texts: list[str] = []
    for start in range(0, len(prompts), _ROWS):
        part = prompts[start : start + _ROWS]
        texts += [a.text for a in answerer.answer(lease, prefix, [""] * len(part), part).answers]
    return texts


# --- The prompt style that makes a model answer with the entity alone ---

# An answer that restates the subject ("Kanpur is a city in ...") puts the question's tokens into
# the answer, and the knockout can no longer tell the two apart.


TRIED = 16  # questions of each set on which a prompt style is tried
SLACK = 0.05  # chat turns may be this much worse: they are what an instructed model was made for


class Style(NamedTuple):
    """The prompt style of a run, and why it was chosen."""

    name: str  # chat or text
    why: str


def settle_style(
    lease: Lease, sets: Sequence[QuestionSet], *, wanted: str, shots: int, max_tokens: int
) -> Style:
    """Choose the prompt style; `auto` takes the one with more bare answers on a few questions."""
    chats = has_chat(lease.model)
    if wanted == "chat" and not chats:
        raise UserError(
            f"{lease.model.name} has no chat template, so the prompt style `chat` cannot be used. "
            "Accepted for it: text, auto."
        )
    if wanted != "auto":
        return Style(wanted, "as asked")
    if not chats:
        return Style("text", "the tokenizer has no chat template")

    def share(style: str) -> float:
        return min(_bare_share(lease, questions, style, shots, max_tokens) for questions in sets)

    chat = share("chat")
    why = f"of {TRIED} answers {chat:.0%} were bare as chat turns"
    if chat == 1:  # nothing can be better
        return Style("chat", why)
    text = share("text")
    return Style("chat" if chat >= text - SLACK else "text", f"{why}, {text:.0%} as text")


def _bare_share(
    lease: Lease, questions: QuestionSet, style: str, shots: int, max_tokens: int
) -> float:
    """Measure the share of bare answers to the first questions of a set in this prompt style."""
    texts = [question.text for question in questions.questions[:TRIED]]
    prompts = make_prompts(lease.model, texts, shots=questions.shots[:shots], style=style)
    lines = _lines_after(lease, [p.ids for p in prompts], max_tokens=max_tokens)
    bare = [is_bare(line, text) for line, text in zip(lines, texts, strict=True)]
    return sum(bare) / len(bare)


def is_bare(answer: str, question: str) -> bool:
    """Whether an answer is its entity alone, apart from punctuation and an article."""
    span = answer_span(answer, question=question)
    return span is not None and len(answer.strip(" .!\"'")) - (span.stop - span.start) <= len(
        "the "
    )
