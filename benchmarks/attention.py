"""Attention of query heads that share their keys: each by itself, and all of a key head together.

    python benchmarks/attention.py [--dtype bfloat16]

The bundled model's heads in the shapes of a run: prompts behind a prefix of 64 tokens, the suffixes
that a knockout changes, and steps of decoding. Both in turns, the best of several tries.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from anchorscope.engine.on_cpu.groups import attend_by_group, wins_by_group

# Rows, queries, keys.
SHAPES = ((128, 16, 80), (128, 15, 95), (128, 1, 81), (25, 1, 85), (1, 1, 90))
HEADS, GROUPS, WIDTH = 9, 3, 64
ROOM = 16  # tokens that may follow
TRIES = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    dtype = getattr(torch, parser.parse_args().dtype)
    print(f"{dtype}, {torch.get_num_threads()} threads\n")
    print(
        "| rows | queries | keys | by themselves, ms | together, ms | ratio | a pass takes them |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for rows, steps, keys in SHAPES:
        query, key, value, bias = given(rows, steps, keys, dtype)
        chosen = "together" if wins_by_group(query) else "by themselves"
        one, other = seconds(query, key, value, bias)
        print(f"| {rows} | {steps} | {keys} | {1e3 * one:.3f} | {1e3 * other:.3f} | "
              f"{one / other:.2f} | {chosen} |")  # fmt: skip


def given(rows: int, steps: int, keys: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys, values and bias as an engine's pass has them."""
    query = torch.randn(rows, steps, HEADS, WIDTH).to(dtype).transpose(1, 2)
    # Behind one another in buffers with room for an answer.
    buffers = (torch.randn(rows, GROUPS, keys + ROOM, WIDTH).to(dtype) for _ in range(2))
    key, value = (buffer[:, :, :keys] for buffer in buffers)
    bias = torch.where(torch.rand(rows, 1, steps, keys) < 0.2, -torch.inf, 0.0)
    bias[..., 0] = 0
    return query, key, value, bias.to(dtype)


def seconds(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[float, float]:
    """Seconds each way."""
    scale = WIDTH**-0.5
    how = {"attn_mask": bias, "scale": scale, "enable_gqa": True}
    ways = (
        lambda: scaled_dot_product_attention(query, key, value, **how),
        lambda: attend_by_group(query, (key, value), bias, scale),
    )
    best = [min(times) for times in zip(*(map(once, ways) for _ in range(TRIES)), strict=True)]
    return best[0], best[1]


@torch.no_grad()
def once(work: Callable[[], Tensor]) -> float:
    work()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
