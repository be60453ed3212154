"""Do the job with plain transformers as an expert would: batches, hooks, one masked pass."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from peers_clock import Clock
from peers_job import MAX_TOKENS, Job, batches, until
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer


class Loaded(NamedTuple):
    lm: Any
    tokenizer: Any


def load(job: Job) -> Loaded:
    tokenizer = AutoTokenizer.from_pretrained(job.folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    lm: Any = AutoModelForCausalLM.from_pretrained(job.folder, dtype=getattr(torch, job.dtype))
    return Loaded(lm.to(job.device).eval(), tokenizer)


def run(model: Loaded, job: Job, clock: Clock) -> tuple[list[list[int]], Tensor, Tensor]:
    """Answers, clean states and knocked-out states [row, layer, width]."""
    with clock.of("generate"):
        answers = generate(model, job)
    with clock.of("clean"):
        clean = read(model, job.rows)
    with clock.of("knockout"):
        knocked = read(model, job.rows, job.cut)
    return answers, clean, knocked


def generate(model: Loaded, job: Job) -> list[list[int]]:
    """The greedy answer to each prompt."""
    answers: list[list[int]] = [[] for _ in job.prompts]
    for batch in batches(job.prompts):
        given = pad(model, [job.prompts[n] for n in batch])
        out = model.lm.generate(
            **given, do_sample=False, max_new_tokens=MAX_TOKENS, eos_token_id=job.stop_ids
        )
        for number, line in zip(batch, out[:, given["input_ids"].shape[1] :].tolist(), strict=True):
            answers[number] = until(job.stop_ids, line)
    return answers


def read(model: Loaded, rows: list[list[int]], cut: list[list[int]] | None = None) -> Tensor:
    """The states after every block at each row's last token, [row, layer, width]."""
    states: list[Tensor] = [torch.empty(0)] * len(rows)
    for batch in batches(rows):
        given = pad(model, [rows[n] for n in batch])
        mask = given["attention_mask"]
        if cut is not None:
            mask = without_edges(mask, [cut[n] for n in batch], [rows[n] for n in batch])
        for number, state in zip(batch, layers(model, given, mask), strict=True):
            states[number] = state
    return torch.stack(states)


@torch.inference_mode()
def layers(model: Loaded, given: dict[str, Tensor], mask: Tensor) -> Tensor:
    """Run one pass without the head; return the states [row, layer, width] on the host."""
    at = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    kept: list[Tensor] = []
    with ExitStack() as stack:
        for block in model.lm.model.layers:
            hook = block.register_forward_hook(lambda m, args, out: kept.append(out[:, -1]))
            stack.callback(hook.remove)
        model.lm.model(given["input_ids"], attention_mask=mask, position_ids=at, use_cache=False)
    return torch.stack(kept, dim=1).float().cpu()


def without_edges(real: Tensor, cut: list[list[int]], rows: list[list[int]]) -> Tensor:
    """The attention mask, bool [row, 1, query, key], without edges from others to the subject."""
    width = real.shape[1]
    subject = torch.zeros(real.shape, dtype=torch.bool)
    for row, (positions, ids) in enumerate(zip(cut, rows, strict=True)):
        subject[row, [width - len(ids) + at for at in positions]] = True
    subject = subject.to(real.device)
    causal = torch.ones(width, width, dtype=torch.bool, device=real.device).tril()
    gone = subject[:, None, :] & ~subject[:, :, None]
    allowed = causal & real.bool()[:, None, :] & ~gone
    # A padding token attends to itself: a query without any key would be NaN.
    return (allowed | torch.eye(width, dtype=torch.bool, device=real.device))[:, None]


def pad(model: Loaded, rows: list[list[int]]) -> dict[str, Tensor]:
    """Token ids and mask of the rows, padded on the left."""
    return dict(model.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(model.lm.device))


CODE = (run, generate, read, layers, without_edges, pad, batches, until)
