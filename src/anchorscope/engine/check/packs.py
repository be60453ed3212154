"""Rows longer than the model's window, and packs of many rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anchorscope.engine.batches import Budget
from anchorscope.engine.check import trial as tries
from anchorscope.engine.check.edits import edits_for
from anchorscope.engine.check.limits import distance
from anchorscope.engine.check.stock import stock_states
from anchorscope.engine.layout import Layout
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits.bounds import Proved, note, noted_of
from anchorscope.engine.masks import first_position
from anchorscope.engine.memory import Growing
from anchorscope.engine.passes import KNOCKOUT
from anchorscope.engine.trunk import grow_trunk, read_prefix
from anchorscope.models import Model
from anchorscope.models.parts import longest_row

# Arithmetic that a check may cost, in multiplications and additions: seconds on two cores.
_COST = {"cpu": 1e12, "cuda": 5e15}
_WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
_NARROW = 8
_FAR = 1 << 15  # positions beyond are not tried


def check_long(model: Model, limit: float) -> tuple[str, bool, str]:
    """A row that reaches beyond the smallest window or chunk: name, whether it is right, why."""
    config = model.lm.config.get_text_config()
    sizes = {name: getattr(config, name, None) for name in _WINDOWS}
    windows = {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}
    name = "a row longer than the model's windows"
    if not windows:
        return name, True, "it has none"
    least = min(windows.values())
    if least + sum(tries.TURNS) <= min(_affordable(model), longest_row(model.lm) or sys.maxsize):
        far = _long(model, least)
        said = f"window {least}"
    else:
        with _narrowed(config, windows):
            far = _long(model, _NARROW)
        said = f"window {least}, tried narrowed to {_NARROW}"
    return name, far < limit, f"{said}: largest difference from stock attention {far:.1e}"


def _long(model: Model, window: int) -> float:
    """How far a knocked-out row whose turn begins behind the first window is from stock."""
    prompt = tries.prompts_for(model)[0]
    front = prompt[: tries.PREFIX] * (window // tries.PREFIX + 1)
    sample = tries.positions((*front, *prompt[tries.PREFIX :]), prompt[:3], 0, start=len(front))
    with Lease(model) as lease:
        prefix = read_prefix(lease, front)
        trunk = grow_trunk(lease, prefix, [sample.ids[: sample.answer_at]], room=0, head=False)
        states = tries.ours(lease, trunk.trunk, (sample,), (KNOCKOUT,))["knockout"]
    edits = edits_for((sample,), KNOCKOUT, layer=model.blocks, heads=1)
    stock = stock_states(model, [sample.ids], edits, depth=model.blocks)
    return distance(states, stock)


def check_far(model: Model, limit: float) -> tuple[str, bool, str]:
    """A row at the last positions that are read must leave a row beside it as it is.

    Rotary embeddings may depend on the length of a whole pass, and with it on other rows.
    """
    name = "a row far from the others changes none of them"
    own, longest = tries.prompts_for(model)[0], longest_row(model.lm)
    if longest is None:
        return name, True, "it names no last position"
    last = min(longest, _FAR) - 1 - first_position(model.parts.decoder)
    near = range(len(own))
    ids = torch.tensor([own, own], device=model.device)

    def first_row(beside: range) -> Tensor:
        at = torch.tensor([[*near], [*beside]], device=model.device)
        memory = Growing(model.blocks, len(own))
        return lease.run(ids, Layout(at, at, prefix_length=0), memory).states[0]

    with Lease(model) as lease:
        far = distance(first_row(range(last + 1 - len(own), last + 1)), first_row(near))
    return name, far < limit, f"at position {last}: by {far:.1e}"


def check_pack(model: Model, limit: float, *, most: int | None) -> tuple[str, bool, str]:
    """A pack, of full size or `most` tokens, whose last row must be that row alone.

    A smaller bound is noted. Longer packs than this are tried when they come.
    """
    noted = replace(noted_of(model.lm), largest=None, proved=None)
    note(model.lm, noted)
    full = min(Budget.of(model).tokens, _affordable(model), most or sys.maxsize)
    name = "a full pack, its last row as that row alone"
    tokens = full
    with Lease(model) as lease:
        while tokens >= tries.PREFIX + max(tries.TURNS):
            far = _packed(lease, tokens)
            if far < limit:
                break
            tokens //= 2
        else:
            return name, False, f"rows of a pack change each other by {far:.1e}"
    proved = proved_up_to(tokens, limit=limit)
    note(model.lm, replace(noted, proved=proved, largest=None if tokens == full else tokens))
    if tokens == full:
        return name, True, f"{tokens:,} tokens, difference {far:.1e}"
    return name, True, f"the model looks at places in a pack: kept to {tokens:,} tokens"


def proved_up_to(tokens: int, *, limit: float) -> Proved:
    """The proof of packs up to so many tokens; rounding moves a state by less than `limit`."""
    return Proved(
        tokens,
        limit,
        near=lambda a, b: distance(a, b) < limit,
        more=lambda lease, more: _packed(lease, more) < limit,
    )


def _packed(lease: Lease, tokens: int) -> float:
    """How far the last row of a pack of so many tokens is from that row alone."""
    rows = tries.distinct_prompts(lease.model, tokens)
    prefix = read_prefix(lease, rows[0][: tries.PREFIX])
    pack = grow_trunk(lease, prefix, rows, room=0, head=False).last.states[-1]
    alone = grow_trunk(lease, prefix, rows[-1:], room=0, head=False).last.states[0]
    return distance(pack, alone)


def _affordable(model: Model) -> int:
    """How many tokens a check may send through the model at once."""
    weights = sum(p.numel() for p in model.lm.parameters())
    cost = _COST["cuda" if model.device.type == "cuda" else "cpu"]
    return max(64, int(cost / weights))


@contextmanager
def _narrowed(config: Any, windows: dict[str, int]) -> Iterator[None]:
    """The model with windows so small that a short row reaches beyond them."""
    try:
        for name in windows:
            setattr(config, name, _NARROW)
        yield
    finally:
        for name, size in windows.items():
            setattr(config, name, size)
