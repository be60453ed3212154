"""The forward pass: answers, clean states and states under interventions."""

from __future__ import annotations

# The tokens of each batch of this process for which memory ran out, so that run.json can name
# them: rounding depends on what shares a batch, and in half precision a smaller one may change an
# answer. Here, since reading it must not import torch.
HALVED: list[int] = []
