"""The batches of this process for which memory ran out, so that run.json can name them.

Rounding depends on what shares a batch: in half precision a smaller one may change an answer.
"""

from __future__ import annotations

HALVED: list[
    int
] = []  # the tokens of each such batch, as they came; torch is not needed to read it
