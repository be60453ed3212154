"""Matrix products of the bundled model's blocks with plain and with packed weights.

    python benchmarks/packed.py [--dtype bfloat16]

The weights of 30 blocks in turn, as in a pass, so that none waits in a cache. Where packed ones win
on the whole, `engine/on_cpu/packed.py` should pack them there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from anchorscope.engine.on_cpu.packed import packed_product, packed_weight, wins_packed

ROWS = (1, 4, 25, 128, 331, 1069, 2050)
WEIGHTS = ((1536, 576), (576, 1536), (576, 576), (192, 576))  # out, in: gate, down, query, key
TIMES = (2, 1, 2, 2)  # how many of each a block has
BLOCKS, TRIES = 30, 4


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    dtype = getattr(torch, parser.parse_args().dtype)
    chosen = "packed" if wins_packed(dtype) else "plain"
    print(f"{dtype}, {torch.get_num_threads()} threads; a lease takes {chosen} weights\n")
    print("| rows | " + " | ".join(f"{o} x {i}" for o, i in WEIGHTS) + " | all of a block |")
    print("| ---: |" + " ---: |" * (len(WEIGHTS) + 1))
    for rows in ROWS:
        found = [milliseconds(rows, *shape, dtype) for shape in WEIGHTS]
        block = [sum(n * of[way] for n, of in zip(TIMES, found, strict=True)) for way in (0, 1)]
        shown = (f"{plain:.3f}, {packed:.3f}" for plain, packed in found)
        print(f"| {rows} | {' | '.join(shown)} | {block[0] / block[1]:.2f} times |")


def milliseconds(rows: int, out: int, width: int, dtype: torch.dtype) -> tuple[float, float]:
    """A product with a plain and with a packed weight, the best of several tries."""
    x = torch.randn(rows, width).to(dtype)
    weights = [torch.randn(out, width).to(dtype) for _ in range(BLOCKS)]
    packed = [packed_weight(weight) for weight in weights]
    best = [float("inf")] * 2
    for _ in range(TRIES):
        best[0] = min(best[0], timed(weights, lambda weight: linear(x, weight)))
        best[1] = min(best[1], timed(packed, lambda weight: packed_product(x, weight, None)))
    return best[0], best[1]


def timed(weights: list[Tensor], multiply: Callable[[Tensor], Tensor]) -> float:
    """The milliseconds of one product, over all weights in turn."""
    begun = time.perf_counter()
    for weight in weights:
        multiply(weight)
    return 1000 * (time.perf_counter() - begun) / len(weights)


if __name__ == "__main__":
    main()
