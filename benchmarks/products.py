"""Matrix products of the bundled model's blocks with oneDNN and with the BLAS that torch has.

    python benchmarks/products.py [--dtype float32]

Each shape by both in turns, the best of several tries. Where the second column is the larger one
for every shape, `engine/on_cpu/products.py` should go without oneDNN there.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.functional import linear

from anchorscope.engine.on_cpu.products import wins_without_onednn, without_onednn

ROWS = (1, 12, 25, 128, 853, 1466)
WEIGHTS = ((1536, 576), (576, 1536), (576, 576), (192, 576))  # out, in: gate, down, query, key
TRIES, SECONDS = 4, 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    dtype = getattr(torch, parser.parse_args().dtype)
    chosen = "BLAS" if wins_without_onednn(dtype) else "oneDNN"
    print(f"{dtype}, {torch.get_num_threads()} threads; a lease takes {chosen}\n")
    print("| rows | weights | oneDNN, GFLOP/s | BLAS, GFLOP/s | ratio |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for rows in ROWS:
        for out, width in WEIGHTS:
            one, other = rates(
                torch.randn(rows, width).to(dtype), torch.randn(out, width).to(dtype)
            )
            print(f"| {rows} | {out} x {width} | {one:.1f} | {other:.1f} | {other / one:.2f} |")


@torch.no_grad()
def rates(x: torch.Tensor, weight: torch.Tensor) -> tuple[float, float]:
    """Billions of operations a second with oneDNN and without it."""
    best = [0.0, 0.0]
    for _ in range(TRIES):
        best[0] = max(best[0], rate(x, weight))
        with without_onednn():
            best[1] = max(best[1], rate(x, weight))
    return best[0], best[1]


def rate(x: torch.Tensor, weight: torch.Tensor) -> float:
    """The same of one try."""
    linear(x, weight)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < SECONDS / TRIES:
        linear(x, weight)
        count += 1
    return 2 * x.numel() * len(weight) * count / (time.perf_counter() - begun) / 1e9


if __name__ == "__main__":
    main()
