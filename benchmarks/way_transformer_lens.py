"""Do the job with TransformerLens as documented: a bridge, its cache, hooks on the scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from peers_clock import Clock
from peers_job import MAX_TOKENS, Job, batches, until
from torch import Tensor
from transformer_lens.model_bridge import (  # pyright: ignore[reportMissingImports]
    TransformerBridge,
)
from transformers.generation.stopping_criteria import EosTokenCriteria


def load(job: Job) -> Any:
    dtype = getattr(torch, job.dtype)
    model = TransformerBridge.boot_transformers(job.folder, device=job.device, dtype=dtype)
    model.tokenizer.padding_side = "left"
    return model


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
    options = {"max_new_tokens": MAX_TOKENS, "do_sample": False, "return_type": "tokens"}
    options |= {"stopping_criteria": EosTokenCriteria(job.stop_ids), "stop_at_eos": False}
    for batch in batches(job.prompts):
        given = pad(model, [job.prompts[n] for n in batch])
        tokens = given.pop("input_ids")
        out = model.generate(tokens, **given, **options, verbose=False)
        for number, line in zip(batch, out[:, tokens.shape[1] :].tolist(), strict=True):
            answers[number] = until(job.stop_ids, line)
    return answers


@torch.no_grad()
def read(model: Any, rows: list[list[int]], cut: list[list[int]] | None = None) -> Tensor:
    """The states after every block at each row's last token, [row, layer, width]."""
    states: list[Tensor] = [torch.empty(0)] * len(rows)
    blocks = range(model.cfg.n_layers)
    names = [f"blocks.{block}.hook_resid_post" for block in blocks]
    for batch in batches(rows):
        given = pad(model, [rows[n] for n in batch])
        hooks = []
        if cut is not None:
            gone = cut_edges(given["attention_mask"], [cut[n] for n in batch])
            hook = partial(without, gone=gone)
            hooks = [(f"blocks.{block}.attn.hook_attn_scores", hook) for block in blocks]
        with model.hooks(fwd_hooks=hooks):
            _, cache = model.run_with_cache(
                given.pop("input_ids"),
                **given,
                names_filter=names,
                pos_slice=-1,
                logits_to_keep=1,
                return_type=None,
            )
        kept = torch.stack([cache[name][:, -1] for name in names], dim=1).float().cpu()
        for number, state in zip(batch, kept, strict=True):
            states[number] = state
    return torch.stack(states)


def without(scores: Tensor, hook: Any, *, gone: Tensor) -> Tensor:
    return scores.masked_fill(gone, -torch.inf)


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
    given = model.tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    return dict(given.to(model.cfg.device))


CODE = (run, generate, read, without, cut_edges, pad, batches, until)
