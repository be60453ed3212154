"""What a pack takes of a GPU's memory, tried once, and the bounds that follow for the whole run.

Many short rows behind a long prefix, every head of them cut after the softmax: no row of a run
costs more for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from anchorscope.engine.check import trial as tries
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits.bounds import bounds_within, kind_of, note, noted_of
from anchorscope.engine.rows import read_batch, row_for
from anchorscope.engine.trunk import grow_trunk, read_prefix
from anchorscope.models import Model
from anchorscope.models.parts import longest_row

_TOKENS, _PREFIX = 1024, 1024
_OWN = 1 << 30  # bytes of a GPU that CUDA and its libraries take for themselves, about


def measure(model: Model) -> None:
    """Notes the bounds of a model on a GPU; elsewhere nothing tells what a pack takes."""
    if kind_of(model) == "cuda":
        taken, tokens = trial_pack(model, peak_bytes)
        room = min(room_on(*memory) for memory in _memory(model))
        note(model.lm, replace(noted_of(model.lm), bounds=bounds_within(room, taken / tokens)))


def trial_pack(model: Model, peak: Callable[[Model, Callable[[], object]], int]) -> tuple[int, int]:
    """What `peak` says of a pass, and how many tokens it had."""
    prompt = tries.prompts_for(model)[0]
    config = model.lm.config.get_text_config()
    longest = (longest_row(model.lm) or 4 * _PREFIX) // 2
    front = (prompt[: tries.PREFIX] * _PREFIX)[: min(_PREFIX, longest)]
    sample = tries.positions((*front, *prompt[tries.PREFIX :]), prompt[:3], 0, start=len(front))
    every = [(b, h) for b in range(1, model.blocks + 1) for h in range(config.num_attention_heads)]
    cut = Intervention(name="post", where="post", heads=tuple(every))
    with Lease(model) as lease:
        prefix = read_prefix(lease, front)
        prompts = [sample.ids[: sample.answer_at]]
        trunk = grow_trunk(lease, prefix, prompts, room=0, head=False).trunk
        row = row_for(sample, 0, cut, blocks=model.blocks, turn_at=len(front), seed=0)
        rows = [row] * max(1, _TOKENS // len(row.ids))
        taken = peak(model, lambda: read_batch(lease, trunk, rows))
    return taken, len(rows) * len(row.ids)


def peak_bytes(model: Model, work: Callable[[], object]) -> int:
    """The most bytes that `work` took on one GPU beside what lay there before."""
    devices = _gpus(model)
    for device in devices:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    before = {device: torch.cuda.memory_allocated(device) for device in devices}
    work()
    return max(torch.cuda.max_memory_allocated(d) - before[d] for d in devices)


def room_on(total: int, held: int, free: int) -> int:
    """The bytes of a GPU that batches may count on, from its size and what the model holds of it.

    Not from what is free just now: that is another number in every run, and with it could come
    other batches, which round otherwise. Only where somebody else holds half of it does that count.
    """
    room = max(0, total - held - _OWN)
    return room if free >= room // 2 else free


def _memory(model: Model) -> list[tuple[int, int, int]]:
    """Of every GPU of a model: its bytes, those this process holds, and those that are free."""
    torch.cuda.empty_cache()
    facts = []
    for device in _gpus(model):
        free, total = torch.cuda.mem_get_info(device)
        facts.append((total, torch.cuda.memory_allocated(device), free))
    return facts


def _gpus(model: Model) -> list[torch.device]:
    devices = {p.device for p in model.lm.parameters() if p.device.type == "cuda"}
    return sorted(devices | {model.device}, key=str)
