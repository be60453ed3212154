"""Why a language model can answer slower with frozen weights, and what a contiguous input changes.

    python benchmarks/frozen.py [--dtype bfloat16] [--threads 2]

`generate` reads the head at the last token of every prompt: a slice of [row, token, width] that is
not contiguous. torch folds such an input into one product of two matrices if the weights want a
gradient; otherwise it makes one product for each row, which reads the weights again and again.
"""

from __future__ import annotations

import argparse
import time
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ROWS, TOKENS, WIDTH, VOCABULARY = 32, 7, 576, 49152  # the head of the bundled model


def milliseconds(given: Tensor, weight: nn.Parameter, repeats: int) -> float:
    """The fastest of several times the head takes, after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        linear(given, weight)
        seconds.append(time.perf_counter() - begun)
    return 1000 * min(seconds[1:])


def kernel(given: Tensor, weight: nn.Parameter) -> str:
    """The product that torch makes of it: mm or bmm."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        linear(given, weight)
    names = {event.key for event in profile.key_averages()}
    return "one product for each row" if "aten::bmm" in names else "one product"


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    dtype = getattr(torch, asked.dtype)
    last = torch.randn(ROWS, TOKENS, WIDTH).to(dtype)[:, -1:]
    weight = torch.randn(VOCABULARY, WIDTH).to(dtype)
    for frozen, contiguous in product((False, True), (False, True)):
        given = last.contiguous() if contiguous else last
        of = nn.Parameter(weight, requires_grad=not frozen)
        took = milliseconds(given, of, asked.repeats)
        print(
            f"{'frozen' if frozen else 'trainable':9}  "
            f"{'contiguous' if contiguous else 'slice':10}  {took:7.1f} ms  {kernel(given, of)}"
        )


if __name__ == "__main__":
    main()
