"""Milliseconds of single kernels on a GPU: attention tiles, the gate, the choice of a token.

    python benchmarks/fused.py [--rows 2048] [--only attention,gate,choice]

Shapes are those of benchmarks/gpu.py (prefix 96, question 24 tokens). Attention is shown with the
whole mask read, then without the prefix's part of it by several tiles: whoever changes `tile_for`
looks here first. With TRITON_INTERPRET=1 it runs on a CPU, where times mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import silu

from anchorscope.engine.choice import likeliest as by_torch
from anchorscope.engine.fused import kernels, segments
from anchorscope.engine.fused.likeliest import likeliest
from anchorscope.engine.fused.segments import Tile, attend_segments, tile_for
from anchorscope.engine.layout import PAD, Layout
from anchorscope.engine.masks import Rule
from anchorscope.engine.memory import Forked, Growing, Pair, Segments

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
PREFIX, QUESTION, START, ANSWER = 96, 24, 12, 6
HEADS = ((32, 8, 64), (24, 8, 128), (32, 8, 128))  # query heads, key heads, width
MANY = [Tile(64, 32, 4), Tile(64, 32, 4, 2), Tile(64, 64, 4), Tile(32, 32, 2), Tile(128, 32, 8, 2)]
FEW = [Tile(16, 64, 4), Tile(16, 32, 4), Tile(16, 32, 2), Tile(16, 32, 1)]
CAUSAL = Rule(lambda row, head, query, key: key <= query)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--only", default="attention,gate,choice")
    asked = parser.parse_args()
    parts = {"attention": attention, "gate": gate, "choice": choice}
    for name in asked.only.split(","):
        for line in parts[name](asked.rows):
            print(line, flush=True)


def attention(rows: int) -> Iterator[str]:
    """A line for each shape and pass with the whole mask, and one for each tile."""
    for heads, key_heads, width in HEADS:
        for step in ("prompt", "decoding", "knockout"):
            yield f"{step}, {heads} and {key_heads} heads of width {width}:"
            yield from tiles(step, rows, heads, key_heads, width)


def tiles(step: str, rows: int, heads: int, key_heads: int, width: int) -> Iterator[str]:
    """The chosen tile with the whole mask, then all tiles without the prefix's part."""
    query, seen, layout = inputs(step, rows, heads, key_heads, width)
    bias, free = layout.bias(0, CAUSAL, DTYPE), layout.open_prefix(0, CAUSAL, DTYPE)

    def work(free: torch.Tensor) -> torch.Tensor:
        return attend_segments(query, seen, bias, free, layout, width**-0.5)

    yield f"    {milliseconds(work, torch.zeros_like(free)):.3f} whole mask"
    own = tile_for(query.shape[2] // rows * heads // key_heads, width, DTYPE)
    try:
        for tile in dict.fromkeys([own, *(FEW if step == "decoding" else MANY)]):
            segments.tile_for = lambda *_, tile=tile: tile
            chosen = " (chosen)" if tile == own else ""
            yield f"    {milliseconds(work, free):.3f} {tuple(tile)}{chosen}"
    finally:
        segments.tile_for = tile_for


def inputs(
    step: str, rows: int, heads: int, key_heads: int, width: int
) -> tuple[torch.Tensor, Segments, Layout]:
    """Queries, keys and values as they lie, and who sees whom, in one kind of pass."""
    prefix = [pair(1, key_heads, PREFIX, width)]
    held = span(rows, PREFIX, PREFIX + QUESTION)
    if step == "prompt":
        at = keys_at = held
        memory: Any = Growing(1, QUESTION + ANSWER, prefix, apart=True)
    elif step == "decoding":
        at, keys_at = (
            span(rows, PREFIX + QUESTION, PREFIX + QUESTION + 1),
            span(rows, PREFIX, PREFIX + QUESTION + 1),
        )
        memory = Growing(1, QUESTION + ANSWER, prefix, apart=True)
        before = Layout(held, held, prefix_length=PREFIX)
        memory.segments(0, before, *packed(rows * QUESTION, key_heads, width, 2))
    else:
        at = span(rows, PREFIX + START, PREFIX + QUESTION + ANSWER)
        keys_at = torch.cat([held.where(held < PREFIX + START, PAD), at], dim=1)
        number = torch.arange(rows, device=DEVICE)
        memory = Forked([pair(rows, key_heads, QUESTION, width)], number, prefix, apart=True)
    layout = Layout(at, keys_at, prefix_length=PREFIX)
    (query,) = packed(at.numel(), heads, width, 1)
    new = packed(at.numel(), key_heads, width, 2)
    return query, memory.segments(0, layout, *new), layout


def span(rows: int, start: int, stop: int) -> torch.Tensor:
    """The positions from start to stop in every row."""
    return torch.arange(start, stop, device=DEVICE).expand(rows, -1)


def pair(rows: int, heads: int, positions: int, width: int) -> Pair:
    """Random keys and values [row, key head, position, head width]."""
    key, value = torch.randn(2, rows, heads, positions, width, device=DEVICE, dtype=DTYPE)
    return key, value


def packed(tokens: int, heads: int, width: int, count: int) -> list[torch.Tensor]:
    """Random [1, head, token, head width], laid out as a model's projections leave them."""
    made = torch.randn(count, 1, tokens, heads, width, device=DEVICE, dtype=DTYPE)
    return [of.transpose(1, 2) for of in made]


def gate(rows: int) -> Iterator[str]:
    """The gate by torch, with a mask on every number, and as it is."""
    for width in (8192, 12288):
        one, up = torch.randn(2, rows * QUESTION, width, device=DEVICE, dtype=DTYPE)
        times = {
            "torch": milliseconds(lambda one, up: silu(one) * up, one, up),
            "with masks": milliseconds(masked_gate, one, up),
            "ours": milliseconds(kernels.gated, one, up, "silu"),
        }
        yield f"gate of width {width}: " + ", ".join(f"{v:.3f} {n}" for n, v in times.items())


def masked_gate(one: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What `gated` does where the numbers do not fill all blocks."""
    out, block = torch.empty_like(one), kernels._BLOCK
    kernel: Any = kernels._gate
    grid = (-(-one.numel() // block),)
    kernel[grid](one, up, out, one.numel(), False, False, block, num_warps=8)
    return out


def choice(rows: int) -> Iterator[str]:
    """The likeliest token of every row, by torch and by our kernel."""
    for size in (128_256, 151_936):
        logits = torch.randn(rows, size, device=DEVICE, dtype=DTYPE)
        same = float((by_torch(logits)[0] == likeliest(logits)[0]).float().mean())
        old, new = (milliseconds(find, logits) for find in (by_torch, likeliest))
        yield f"choice among {size}: {old:.3f} torch, {new:.3f} ours, {same:.0%} alike"


def milliseconds(work: Callable[..., object], *given: Any) -> float:
    """The mean of some calls after two to warm up."""
    times, warm = (12, 2) if DEVICE.type == "cuda" else (1, 0)
    for _ in range(warm):
        work(*given)
    _wait()
    begun = time.perf_counter()
    for _ in range(times):
        work(*given)
    _wait()
    return 1000 * (time.perf_counter() - begun) / times


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
