"""Do the job with nnsight as documented: `trace`, `.output`, and `.source` for the scores."""

from __future__ import annotations

from typing import Any

import nnsight  # pyright: ignore[reportMissingImports]
import torch
from nnsight import TransformersModel  # pyright: ignore[reportMissingImports]
from peers_clock import Clock
from peers_job import MAX_TOKENS, Job, batches, until
from torch import Tensor


def load(job: Job) -> Any:
    # Scores exist in the eager implementation alone.
    return TransformersModel(
        job.folder,
        task="text-generation",
        dispatch=True,
        device_map=job.device,
        dtype=getattr(torch, job.dtype),
        attn_implementation="eager",
    )


def run(model: Any, job: Job, clock: Clock) -> tuple[list[list[int]], Tensor, Tensor]:
    """Answers, clean states and knocked-out states [row, layer, width]."""
    with clock.of("generate"):
        answers = generate(model, job)
    with clock.of("clean"):
        clean = read(model, job.rows)
    with clock.of("knockout"):
        knocked = read(model, job.rows, job.cut)
    return answers, clean, knocked


@torch.no_grad()
def generate(model: Any, job: Job) -> list[list[int]]:
    """The greedy answer to each prompt."""
    answers: list[list[int]] = [[] for _ in job.prompts]
    options = {"do_sample": False, "max_new_tokens": MAX_TOKENS, "eos_token_id": job.stop_ids}
    for batch in batches(job.prompts):
        given = pad(model, [job.prompts[n] for n in batch])
        with model.generate(given, **options) as tracer:
            out = tracer.result.save()
        for number, line in zip(batch, out[:, given["input_ids"].shape[1] :].tolist(), strict=True):
            answers[number] = until(job.stop_ids, line)
    return answers


@torch.no_grad()
def read(model: Any, rows: list[list[int]], cut: list[list[int]] | None = None) -> Tensor:
    """The states after every block at each row's last token, [row, layer, width]."""
    states: list[Tensor] = [torch.empty(0)] * len(rows)
    for batch in batches(rows):
        given = pad(model, [rows[n] for n in batch])
        gone = None
        if cut is not None:
            gone = cut_edges(given["attention_mask"], [cut[n] for n in batch])
        with model.trace(given) as tracer:
            kept = nnsight.save([])
            for block in model.model.layers:
                if gone is not None:
                    eager = block.self_attn.source.attention_interface_1.source
                    scores = eager.attn_weights_1.output
                    eager.attn_weights_1.output = scores.masked_fill(gone, -torch.inf)
                kept.append(block.output[:, -1])
            tracer.stop()
        for number, state in zip(batch, torch.stack(kept, dim=1).float().cpu(), strict=True):
            states[number] = state
    return torch.stack(states)


def cut_edges(real: Tensor, cut: list[list[int]]) -> Tensor:
    """The edges from queries outside the subject to it, bool [row, 1, query, key]."""
    subject = torch.zeros(real.shape, dtype=torch.bool, device=real.device)
    for row, positions in enumerate(cut):
        start = int((real[row] == 0).sum())
        subject[row, [start + at for at in positions]] = True
    # Padding queries keep their keys: a query without any key would be NaN.
    return (subject[:, None, :] & (~subject & real.bool())[:, :, None])[:, None]


def pad(model: Any, rows: list[list[int]]) -> dict[str, Tensor]:
    """Token ids and mask of the rows, padded on the left."""
    return dict(model.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(model.device))


CODE = (run, generate, read, cut_edges, pad, batches, until)
