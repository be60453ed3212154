"""Attention on a CPU: query heads by themselves, those of a key head together, the prefix apart.

    python benchmarks/attention.py [--dtype bfloat16]

The bundled model's heads in the shapes of a run: prompts behind a prefix of 64 tokens, the suffixes
that a knockout changes, and steps of decoding. All ways in turns, the best of several tries. Laying
the prefix in front of each row's keys, which the last way does without, is not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from anchorscope.engine.layout import Layout
from anchorscope.engine.on_cpu.groups import attend_by_group, wins_by_group
from anchorscope.engine.on_cpu.prefix import attend_apart, wins_apart

PREFIX = 64
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
    print("| rows | queries | keys | by themselves | together | prefix apart, ms | chosen |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for rows, steps, keys in SHAPES:
        query, key, value, bias = given(rows, steps, keys, dtype)
        took = " | ".join(f"{1e3 * one:.3f}" for one in seconds(query, key, value, bias))
        print(f"| {rows} | {steps} | {keys} | {took} | {chosen(query, key)} |")


@torch.no_grad()
def chosen(query: Tensor, key: Tensor) -> str:
    """The way that a pass takes."""
    if wins_apart(packed(query), laid_out(query, key)):
        return "prefix apart"
    return "together" if wins_by_group(query) else "by themselves"


def laid_out(query: Tensor, key: Tensor) -> Layout:
    """Rows without padding, whose queries are their last tokens."""
    at = torch.arange(PREFIX, key.shape[2]).expand(len(query), -1)
    sizes = [query.shape[2]] * len(query)
    return Layout(at[:, at.shape[1] - query.shape[2] :], at, prefix_length=PREFIX, sizes=sizes)


def packed(query: Tensor) -> Tensor:
    """The queries as a model's block has them, [1, head, token, head width]."""
    return query.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None]


def prefix_of(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key[:1, :, :PREFIX].contiguous(), value[:1, :, :PREFIX].contiguous()


def given(rows: int, steps: int, keys: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys, values and bias as an engine's pass has them."""
    query = torch.randn(rows, steps, HEADS, WIDTH).to(dtype).transpose(1, 2)
    # Behind one another in buffers with room for an answer.
    buffers = (torch.randn(rows, GROUPS, keys + ROOM, WIDTH).to(dtype) for _ in range(2))
    key, value = (buffer[:, :, :keys] for buffer in buffers)
    bias = torch.where(torch.rand(rows, 1, steps, keys) < 0.2, -torch.inf, 0.0)
    bias[..., : PREFIX + 1] = 0
    return query, key, value, bias.to(dtype)


def seconds(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> list[float]:
    """Seconds each way."""
    scale = WIDTH**-0.5
    how = {"attn_mask": bias, "scale": scale, "enable_gqa": True}
    layout, prefix = laid_out(query, key), prefix_of(key, value)
    own, rest = (key[:, :, PREFIX:], value[:, :, PREFIX:]), bias[..., PREFIX:]
    tokens, seen = packed(query), torch.ones(len(query), 1, 1, dtype=torch.bool)
    ways = (
        lambda: scaled_dot_product_attention(query, key, value, **how),
        lambda: attend_by_group(query, (key, value), bias, scale),
        lambda: attend_apart(tokens, prefix, own, rest, seen, layout, scale),
    )
    return [min(times) for times in zip(*(map(once, ways) for _ in range(TRIES)), strict=True)]


@torch.no_grad()
def once(work: Callable[[], Tensor]) -> float:
    work()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
