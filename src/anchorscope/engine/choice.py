"""How the next token is chosen from logits: the likeliest, or drawn; and how sure that is."""

from __future__ import annotations

import torch
from torch import Tensor

_FAR = -1e4  # the exponential of anything below is 0


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, their log-probabilities and the entropies, [row] each."""
    logits = logits.float()
    top, chosen = logits.max(dim=-1)
    below = logits - top[:, None]
    share = below.exp()  # once: on a CPU it costs a tenth of a decoding step
    total = share.sum(dim=-1)
    # What cannot be chosen has -inf, and adds nothing.
    mean = torch.linalg.vecdot(share, below.clamp_(min=_FAR)) / total
    return chosen, -total.log(), total.log() - mean


def entropies(log_probs: Tensor) -> Tensor:
    """The entropy of each row of log-probabilities [row, token]."""
    return -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(dim=-1)


def drawn(log_probs: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """The token of each row at which the cumulative probability passes its number, [row].

    `uniforms` [row] lie in [0, 1). In double precision where the device has it: single sums over
    a large vocabulary are off by more than many tokens' probability.
    """
    exact = torch.float32 if log_probs.device.type == "mps" else torch.float64
    chances = torch.softmax(log_probs.to(exact) / temperature, dim=-1)
    heights = chances.cumsum(dim=-1)
    target = uniforms.to(heights)[:, None] * heights[:, -1:]
    return torch.searchsorted(heights, target, right=True)[:, 0].clamp(max=log_probs.shape[1] - 1)
