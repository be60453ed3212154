"""Do the knockout with plain transformers, one pass for each k: cut blocks 1..k, read layer k.

Answers and clean states are the expert's and are not computed again here.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from peers_clock import Clock
from peers_job import Job, batches
from torch import Tensor
from way_transformers_expert import Loaded, layers, load, pad, without_edges


def run(model: Loaded, job: Job, clock: Clock) -> tuple[None, None, Tensor]:
    """Knocked-out states [row, layer, width]."""
    with clock.of("knockout"):
        count = len(model.lm.model.layers)
        knocked = torch.stack([read(model, job, k)[:, k - 1] for k in range(1, count + 1)], dim=1)
    return None, None, knocked


def read(model: Loaded, job: Job, k: int) -> Tensor:
    """Read the states [row, layer, width] with the blocks 1..k cut."""
    states: list[Tensor] = [torch.empty(0)] * len(job.rows)
    for batch in batches(job.rows):
        rows, cut = [job.rows[n] for n in batch], [job.cut[n] for n in batch]
        given = pad(model, rows)
        mask = without_edges(given["attention_mask"], cut, rows)
        with ExitStack() as stack:
            for block in model.lm.model.layers[:k]:
                hook = block.self_attn.register_forward_pre_hook(replace(mask), with_kwargs=True)
                stack.callback(hook.remove)
            for number, state in zip(
                batch, layers(model, given, given["attention_mask"]), strict=True
            ):
                states[number] = state
    return torch.stack(states)


def replace(mask: Tensor) -> Any:
    return lambda module, args, kwargs: (args, {**kwargs, "attention_mask": mask})


CODE = (run, read, replace, layers, without_edges, pad, batches)
__all__ = ["CODE", "load", "run"]
