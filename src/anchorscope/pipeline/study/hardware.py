"""Kinds of GPU, and how fast a model of a size runs on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anchorscope.errors import UserError, unknown

GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """`gpus` devices of one kind, each with some cores of a processor beside it."""

    kind: str
    gpus: int
    products: float  # FLOP/s of a large matrix product on one device
    memory: float  # bytes of one device
    cores: int  # of the processor, beside each device

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"


# A large bfloat16 product reached 650 to 770 TFLOP/s on an H200 (docs/performance.md), 0.71 of
# what its maker states. The other kinds are taken to reach the same share; they were not tried.
_SHARE = 0.71
_STATED = {  # TFLOP/s in bfloat16 without sparsity, and GB of memory
    "h200": (989, 141), "h100": (989, 80), "a100": (312, 80), "a100-40": (312, 40),
    "l40s": (362, 48),
}  # fmt: skip
_CPU_CORE = 30e9  # float32: two Neoverse-N1 cores reach 60 GFLOP/s; AMX is several times faster
_CPU_SHARE = 0.77  # of the time goes to products there
KINDS = (*_STATED, "cpu")
# Share of a large product's rate that a whole job reaches, by weights of all blocks: one H200,
# 2,048 questions, answers and one knockout (docs/performance.md).
_REACHED = ((0.97e9, 0.35), (2.82e9, 0.44), (6.95e9, 0.53), (31.2e9, 0.70))


def hardware(kind: str, gpus: int = 1, *, cores: int = 16, memory: float = 16 * GB) -> Hardware:
    """So many devices of a kind; `memory` counts for a CPU only."""
    if kind not in KINDS:
        raise unknown("kind of GPU", kind, KINDS)
    if gpus < 1:
        raise UserError(f"--gpus is {gpus}. Accepted: 1 or more.")
    if kind == "cpu":
        rate = _CPU_CORE * cores
        return Hardware(kind=kind, gpus=gpus, products=rate, memory=memory, cores=cores)
    rate, room = _STATED[kind]
    products = rate * 1e12 * _SHARE
    return Hardware(kind=kind, gpus=gpus, products=products, memory=room * GB, cores=cores)


def reached(block_weights: float, on: Hardware) -> float:
    """The share of the products' rate that a model of this size reaches, between the measured."""
    if on.is_cpu:
        return _CPU_SHARE
    at = math.log(block_weights)
    sizes = [math.log(size) for size, _ in _REACHED]
    place = next((i for i, size in enumerate(sizes[1:-1], 1) if at < size), len(sizes) - 1)
    (low, high), (from_, to) = (
        sizes[place - 1 : place + 1],
        [s for _, s in _REACHED[place - 1 : place + 1]],
    )
    share = from_ + (to - from_) * (at - low) / (high - low)
    return min(max(share, 0.03), _REACHED[-1][1])
