"""The model of a run: understood, the same as when the run began, and described in run.json."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from anchorscope.config import Config
from anchorscope.engine.batches import (
    Budget,
    bounds_of,
    facts_of,
    kind_of,
    power_of_two,
    set_facts,
)
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import Prefix
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.evidence.shards import read_ends
from anchorscope.models import Model, load_model
from anchorscope.pathways.effects import check_grouping
from anchorscope.pipeline.request import Run, command_of
from anchorscope.run_folder.identity import git_revision, versions, weights_hash
from anchorscope.run_folder.store import Store

FIXED_PROMPT = "fixed-prompt.safetensors"
_PROMPT = "The river that flows through the largest city of the country is called"
# Of a layer's own length. Rounding alone stays far below; another kernel in half precision near it.
_ROUNDING = {"torch.float32": 1e-4, "torch.float16": 1e-2, "torch.bfloat16": 5e-2}
_SHARD = {"cpu": 64, "cuda": 4096}  # questions between two saves, at most
# On a GPU the next token of many answers takes hardly longer than that of few, and their states
# under one pass may take so many bytes of main memory. Not by who computes: one process and
# several must make the same batches.
_LEAST_GPU, _STATES = 1024, 1 << 28
# Of a shard on a CPU: half a minute on two cores, so that a stop loses no more than a minute.
_LEAST, _OPERATIONS = 4, 1 << 41
_TOKENS = 64  # of a question with its answer and interventions, about


@contextmanager
def leased(run: Run, model: Any, *, compare: bool = False) -> Iterator[Lease]:
    """Load the run's model, ready to read with; `compare` its states with those of other processes.

    `model` is what `load` takes.
    """
    with threads_of_run(run.config, run.store.info), Lease(load(run, model)) as lease:
        if compare:
            compare_fixed_prompt(run.store, lease)
        yield lease


@contextmanager
def threads_of_run(config: Config, info: dict[str, Any]) -> Iterator[None]:
    """Take as many threads as the run began with: the order of sums depends on it."""
    before = torch.get_num_threads()
    threads = config.threads or info.get("model", {}).get("threads")
    torch.set_num_threads(int(threads or before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load(run: Run, model: Any) -> Model:
    """Load the model, check that it is the run's, and describe it in run.json.

    `model`, where it is not None, replaces the one that the config names.
    """
    with run.stage("model"):
        loaded, facts = _load_same(run, model)
        check_grouping(run.config.grouping, loaded.blocks)
        run.progress.note(f"{loaded.name}: {loaded.why}")
        _save_facts(run, loaded, facts)
        return loaded


def load_again(run: Run, model: Any) -> Model:
    """Load the model of answers that are on disk, to read more; run.json stays as it is."""
    with run.stage("model"):
        return _load_same(run, model)[0]


def _load_same(run: Run, model: Any) -> tuple[Model, dict[str, str]]:
    """The model and its hash and dtype, which must be those of the run, if it has begun."""
    c, store = run.config, run.store
    loaded = load_model(
        c.model if model is None else model,
        device=c.device,
        dtype=c.dtype,
        revision=c.revision,
        trust_remote_code=c.trust_remote_code,
        adapter=c.adapter,
    )
    weights = weights_hash(loaded.lm)
    require_understood(loaded, weights=weights)
    facts = {"weights": weights, "dtype": str(loaded.dtype).removeprefix("torch.")}
    before, bounds = store.info.get("model", facts), bounds_of(loaded)
    # Of a run that has begun: other batches would round otherwise.
    if before.get("device") == str(loaded.device) and "bounds" in before:
        bounds = Budget(**before["bounds"])
    elif c.batch_tokens is not None:
        bounds = replace(bounds, tokens=c.batch_tokens)
    set_facts(loaded.lm, replace(facts_of(loaded.lm), bounds=bounds))
    if any(before[name] != fact for name, fact in facts.items()):
        raise UserError(
            f"{store.path} was begun with other weights or another dtype "
            f"({before['dtype']}, now {facts['dtype']}). Use the same model, or another --out."
        )
    return loaded, facts


def _save_facts(run: Run, model: Model, facts: dict[str, str]) -> None:
    """Write to run.json what a reader needs to repeat the run."""
    store, config = run.store, run.config
    shard = config.shard or shard_of(model)
    before = store.info
    here = {name: getattr(model, name) for name in ("name", "source", "revision", "adapter")}
    here |= {"blocks": model.blocks, "width": model.parts.width, "why": model.why}
    here |= {"device": str(model.device), "bounds": asdict(bounds_of(model))}
    if model.device.type == "cpu":
        here["threads"] = torch.get_num_threads()  # the order of sums depends on it
    else:
        here["kernels"] = "fused" if Lease(model).fused else "stock"
    store.save_info(
        {
            "config": asdict(config),
            "command": before.get("command") or command_of(config, store.path),
            "model": {**before.get("model", {}), **here, **facts},
            "datasets": [
                {
                    "name": questions.name,
                    "title": questions.title,
                    "questions": len(questions),
                    "dropped": dict(questions.dropped),
                }
                for questions in run.sets
            ],
            "shard": before.get("shard", shard),  # the size it began with: files are numbered
            "versions": versions(),
            "git": git_revision(),
            "started": before.get("started") or time.strftime("%Y-%m-%d %H:%M"),
        }
    )


def shard_of(model: Model) -> int:
    """How many questions are saved together: fewer of a model that is slow on a CPU, or wide."""
    size = _SHARD[kind_of(model)]
    if kind_of(model) == "cuda":
        state = 2 * model.blocks * model.parts.width  # bytes in half precision
        return max(_LEAST_GPU, min(size, power_of_two(_STATES // state)))
    weights = sum(p.numel() for block in model.parts.blocks for p in block.parameters())
    while size > _LEAST and size * _TOKENS * 2 * weights > _OPERATIONS:
        size //= 2
    return size


def compare_fixed_prompt(store: Store, lease: Lease) -> None:
    """Raise a UserError where this process's states are not the first worker's, but for rounding.

    Another kind of GPU, another version of torch, a broken kernel: weights and settings agree, and
    the states do not.
    """
    ids = tuple(lease.model.tokenizer(_PROMPT)["input_ids"])
    budget = Budget.of(lease.model)
    states = read_ends(lease, Prefix((), None), {"fixed": ids}, budget=budget)["fixed"]
    states = np.ascontiguousarray(states, dtype=np.float32)  # [layer, width]
    store.create(FIXED_PROMPT, save_arrays({"states": states}))
    first = load_arrays(store.file(FIXED_PROMPT).read_bytes())["states"]
    most, distance = _ROUNDING.get(str(lease.model.dtype), 1e-4), float("inf")
    if states.shape == first.shape:
        lengths = np.linalg.norm(first, axis=1)
        distance = float((np.linalg.norm(states - first, axis=1) / lengths).max())
    if not distance <= most:
        raise UserError(
            f"This worker's states of a fixed prompt are not those in {store.file(FIXED_PROMPT)}: "
            f"they differ by {distance:.1g} of their length, and rounding explains {most:g}. Its "
            "device or its versions of torch and transformers are others. Use like machines, or "
            "another --out for this one."
        )
