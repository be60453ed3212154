"""Answers that somebody else wrote: their tokens, and how sure the model is of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from anchorscope.detect.written import Found
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix, grow_trunk
from anchorscope.models import Model
from anchorscope.models.prompts import Prompt

if TYPE_CHECKING:
    from anchorscope.detect.binding import Bound


def answer_tokens(
    model: Model, prompt: Prompt, bound: Bound, question: str, answer: str
) -> tuple[int, ...]:
    """The tokens of an answer that stands after the prompt."""
    text = bound.before + question + bound.after
    lead = "" if not text or text[-1].isspace() else " "
    code = model.tokenizer
    whole = code(text + lead + answer.strip(), add_special_tokens=False, verbose=False)["input_ids"]
    written = len(prompt.ids)
    if tuple(whole[:written]) == prompt.ids:
        return tuple(whole[written:])
    # The answer's first letters melted into the prompt's last token: coded by itself instead.
    return tuple(code(lead + answer.strip(), add_special_tokens=False, verbose=False)["input_ids"])


def with_log_probs(
    lease: Lease, prefix: Prefix, prompts: Sequence[tuple[int, ...]], found: Sequence[Found]
) -> list[Found]:
    """The answers with the log-probability of each token, and the entropy of the first.

    One row for each token's own context; only detectors that read tokens pay for it.
    """
    out = []
    for prompt, one in zip(prompts, found, strict=True):
        ids = one.answer.token_ids
        if not ids:
            out.append(one)
            continue
        contexts = [prompt + ids[:n] for n in range(len(ids))]
        grown = grow_trunk(lease, prefix, contexts, room=0, head=True)
        assert grown.last.logits is not None
        log_probs = torch.log_softmax(grown.last.logits.float(), dim=-1)
        entropy = -(log_probs[0].exp() * log_probs[0]).nan_to_num(0.0).sum()
        own = log_probs[torch.arange(len(ids)), list(ids)]
        answer = replace(one.answer, log_probs=tuple(own.tolist()), first_entropy=float(entropy))
        out.append(replace(one, answer=answer))
    return out
