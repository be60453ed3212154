"""Generate the model's greedy answers, with their states, and sampled answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anchorscope.engine.decode import (
    DecodedAnswer,
    OnToken,
    Prefix,
    Sampling,
    Trunk,
    read_prefix,
    shared_prefix,
    write_answers,
)
from anchorscope.engine.lease import Lease
from anchorscope.models import Model
from anchorscope.models.prompts import PromptPart, stop_ids, tokenise
from anchorscope.records import Answer, Span

_PIECE = 8  # the least number of tokens that are decoded together
_TORN = "\ufffd"  # what a part of a character decodes to
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class Answered:
    """A batch of answers in the order of the questions, with their shared trunk."""

    answers: tuple[Answer, ...]
    states: Tensor  # [row, token, layer, width]
    trunk: Trunk
    extra: Tensor | None = None  # [row, layer, width] at the extra position of each prompt


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
        return Answer(
            id=id,
            text=text.strip(),
            token_ids=decoded.token_ids,
            log_probs=decoded.log_probs,
            first_entropy=decoded.first_entropy,
            finished=decoded.finished,
            entropies=decoded.entropies,
        )


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


def write_lines(
    lease: Lease, prompts: Sequence[str], *, max_tokens: int, rows: int = 32
) -> list[str]:
    """Generate one line of text after each prompt, greedily."""
    model = lease.model
    answerer = Answerer(model, max_tokens=max_tokens)
    coded = tokenise(
        model.tokenizer, [[PromptPart(prompt, False)] for prompt in prompts], special=True
    )
    ids = [one.ids for one in coded]
    prefix = read_prefix(lease, shared_prefix(ids, stop=min(map(len, ids)) - 1))
    texts: list[str] = []
    for start in range(0, len(ids), rows):
        part = ids[start : start + rows]
        texts += [a.text for a in answerer.answer(lease, prefix, [""] * len(part), part).answers]
    return texts
