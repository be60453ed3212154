"""The likeliest token of each row with its log-probability and the entropy, in one pass.

By torch's own functions the logits of a large vocabulary are read and written a dozen times.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit(do_not_specialize=["size", "stride"])
def _choose(logits, chosen, log_prob, entropy, size, stride, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    lane = tl.arange(0, block)
    # Of what a lane has seen: the largest x, where it stood, and the sums of exp(x - largest)
    # and of exp(x - largest) (x - largest).
    best = tl.full([block], float("-inf"), tl.float32)
    place = lane
    total = tl.zeros([block], tl.float32)
    moment = tl.zeros([block], tl.float32)
    for begin in range(0, size, block):
        at = begin + lane
        x = tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float32)
        place = tl.where(x > best, at, place)
        top = tl.maximum(best, x)
        down = tl.where(best == float("-inf"), 0.0, best - top)
        below = tl.where(x == float("-inf"), 0.0, x - top)
        own = tl.where(x == float("-inf"), 0.0, tl.exp(below))
        shrink = tl.exp(down)
        moment = shrink * (moment + down * total) + own * below
        total = shrink * total + own
        best = top
    top = tl.max(best, axis=0)
    down = tl.where(best == float("-inf"), 0.0, best - top)
    moment = tl.sum(tl.exp(down) * (moment + down * total), axis=0)
    total = tl.sum(tl.exp(down) * total, axis=0)
    first = tl.min(tl.where(best == top, place, size), axis=0)  # of equals, as torch chooses
    tl.store(chosen + row, first.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(log_prob + row, -tl.log(total))
    mean = moment / total  # pyright: ignore[reportOperatorIssue]
    tl.store(entropy + row, tl.log(total) - mean)


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, their log-probabilities and the entropies, [row] each."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, size = logits.shape
    chosen = torch.empty(rows, dtype=torch.long, device=logits.device)
    log_prob, entropy = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    kernel: Any = _choose
    kernel[(rows,)](
        logits, chosen, log_prob, entropy, size, logits.stride(0), _BLOCK, num_warps=16
    )  # fmt: skip
    return chosen, log_prob, entropy
