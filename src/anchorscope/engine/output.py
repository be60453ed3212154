"""The model's own output under a pass: log-probability and rank of the answer's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.layout import Layout
from anchorscope.engine.transfer import sent

# What is read of each answer, in this order.
COLUMNS = ("log_p_first", "log_p", "rank")
LOGIT_BYTES = 1 << 30  # of one pass at most: a vocabulary has up to 256,000 entries
_AT_ONCE = 256  # contexts whose logits are widened to float32 together


class HasAnswer(Protocol):
    """A row whose last `answer` tokens are the answer's."""

    @property
    def ids(self) -> tuple[int, ...]: ...

    @property
    def answer(self) -> int: ...


@dataclass(frozen=True)
class AnswerTokens:
    """The answer tokens of a batch of rows, and the packed tokens that each is predicted from."""

    row: Tensor  # [token]
    target: Tensor  # [token]: its id
    contexts: Tensor  # [context]: packed tokens, each once
    context: Tensor  # [token]: which of the contexts is the one before it
    first: Tensor  # [row]: the row's first answer token among all of them

    @classmethod
    def of(cls, batch: Sequence[HasAnswer], layout: Layout) -> AnswerTokens:
        device, counts = layout.query_at.device, [row.answer for row in batch]
        assert min(counts) > 0, "the token before the answer must be in the row"
        row = sent(np.repeat(np.arange(len(batch)), counts), device)
        back = sent(np.concatenate([np.arange(count, 0, -1) for count in counts]), device)
        target = sent([id for row in batch for id in row.ids[len(row.ids) - row.answer :]], device)
        first = sent(np.cumsum([0, *counts[:-1]]), device)
        contexts = layout.token_back(row, back)
        context = torch.arange(len(contexts), device=device)
        if layout.distinct is not None:  # rows share tokens, and their logits
            contexts, context = contexts.unique(return_inverse=True)
        return cls(row, target, contexts, context, first)


def answer_output(logits: Tensor, answers: AnswerTokens, *, rows: int) -> Tensor:
    """What the model makes of each row's answer, float32 [row, 3], from logits [context, token].

    Its columns: the log-probability of the answer's first token, the mean over all of its tokens up
    to the probe position, and the rank of the first token, 1 for the likeliest.
    """
    parts = [part.float().logsumexp(dim=-1) for part in logits.split(_AT_ONCE)]
    own = logits[answers.context, answers.target].float()
    log_p = own - torch.cat(parts)[answers.context]
    count = torch.zeros(rows, device=logits.device).index_add_(0, answers.row, torch.ones_like(own))
    mean = torch.zeros(rows, device=logits.device).index_add_(0, answers.row, log_p) / count
    context, chosen = answers.context[answers.first], own[answers.first]
    ranks = [
        (logits[some].float() > least[:, None]).sum(dim=-1) + 1
        for some, least in zip(context.split(_AT_ONCE), chosen.split(_AT_ONCE), strict=True)
    ]
    return torch.stack([log_p[answers.first], mean, torch.cat(ranks).float()], dim=1)
