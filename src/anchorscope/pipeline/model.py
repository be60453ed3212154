"""The model of a run: understood, the same as when the run began, and described in run.json."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import torch

from anchorscope.engine.check import require_understood
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits.bounds import (
    Bounds,
    bounds_of,
    kind_of,
    note,
    noted_of,
    power_of_two,
)
from anchorscope.engine.passes import CAUGHT, passes_of
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import passes_of_pieces
from anchorscope.models import Model, load_model
from anchorscope.pathways.effects import check_grouping
from anchorscope.pipeline.request import command_of
from anchorscope.pipeline.stages import Run
from anchorscope.run_folder.disk import check_room, disk_bytes
from anchorscope.run_folder.identity import git_revision, versions, weights_hash, weights_remark

_SHARD = {"cpu": 512, "cuda": 4096}  # questions between two saves, at most
# On a GPU the next token of many answers takes hardly longer than that of few, and their states
# under one pass may take so many bytes of main memory. Not by who computes: one process and
# several must make the same batches.
_LEAST_GPU, _STATES = 1024, 1 << 28
_LEAST, _OPERATIONS = 64, 1 << 43  # of a shard on a CPU: one to two minutes there
_TOKENS = 64  # of a question with its answer and interventions, about


def load(run: Run, model: Any) -> Model:
    """Load the model, check that it is the run's, and describe it in run.json.

    `model`, where it is not None, replaces the one that the config names.
    """
    with run.stage("model"):
        loaded, facts = _load_same(run, model)
        check_grouping(run.config.grouping, loaded.blocks)
        run.progress.note(f"{loaded.name}: {loaded.why}")
        _check_room(run, loaded)
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
    before = store.info.get("model", facts)
    _bound(loaded, before, c.batch_tokens)
    if any(before[name] != fact for name, fact in facts.items()):
        raise UserError(
            f"{store.path} was begun with other weights or another dtype "
            f"({before['dtype']}, now {facts['dtype']}).{weights_remark(before['weights'])} Use "
            "the same model, or another --out."
        )
    return loaded, facts


def _bound(model: Model, before: dict[str, Any], tokens: int | None) -> None:
    """Keep the bounds a run began with, since other batches would round otherwise."""
    bounds = bounds_of(model)
    if before.get("device") == str(model.device) and "bounds" in before:
        bounds = Bounds(**before["bounds"])
    elif tokens is not None:
        bounds = bounds._replace(tokens=tokens)
    note(model.lm, replace(noted_of(model.lm), bounds=bounds))


def _check_room(run: Run, model: Model) -> None:
    """Note what the run takes of the disk; a UserError where less is free. A URL has no end."""
    if run.store.remote is not None or "only" in run.store.info.get("identity", {}):
        return
    passes = len(CAUGHT) + len((*passes_of(run.config), *passes_of_pieces(run.config)))
    questions = sum(len(each.questions) for each in run.sets)
    needed = disk_bytes(questions, model.blocks, model.parts.width, passes)
    run.progress.note(check_room(run.store.path, needed))


def _save_facts(run: Run, model: Model, facts: dict[str, str]) -> None:
    """Write to run.json what a reader needs to repeat the run."""
    store, config = run.store, run.config
    shard = config.shard or shard_of(model)
    name = {name: getattr(model, name) for name in ("name", "source", "revision", "adapter")}
    shape = {"blocks": model.blocks, "width": model.parts.width}
    here = {"device": str(model.device), "why": model.why, "bounds": bounds_of(model)._asdict()}
    if model.device.type == "cpu":
        here["threads"] = torch.get_num_threads()  # the order of sums depends on it
    else:
        here["kernels"] = "fused" if Lease(model).apart else "stock"
    before = store.info
    store.save_info(
        {
            "config": asdict(config),
            "command": before.get("command") or command_of(config, store.path),
            "model": {**before.get("model", {}), **name, **shape, **here, **facts},
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
