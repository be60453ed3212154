"""Load the model of a run, check that it has not changed, and describe it in run.json."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch

from anchorscope.config import Config
from anchorscope.engine.batches import Budget, facts_of, set_facts, shard_of
from anchorscope.engine.check import require_understood
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.models import Model, load_model
from anchorscope.pathways.effects import check_grouping
from anchorscope.pipeline.request import Run, command_of
from anchorscope.run_folder.identity import git_revision, versions, weights_hash


@contextmanager
def leased(run: Run, model: Any) -> Iterator[Lease]:
    """Load the run's model and lease it for reading; `model` is as in `load`."""
    with threads_of_run(run.config, run.store.info), Lease(load(run, model)) as lease:
        yield lease


@contextmanager
def threads_of_run(config: Config, info: dict[str, Any]) -> Iterator[None]:
    """Set torch's threads to the number the run began with: the order of sums depends on it."""
    before = torch.get_num_threads()
    threads = config.threads or info.get("model", {}).get("threads")
    torch.set_num_threads(int(threads or before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load(run: Run, model: Any, *, again: bool = False) -> Model:
    """Load the model, check that it is the run's, and describe it in run.json.

    `model`, where it is not None, replaces the one that the config names. With `again`, to read
    stored answers once more, run.json is left as it is.
    """
    with run.stage("model"):
        loaded, facts = _load_same(run, model)
        if not again:
            check_grouping(run.config.grouping, loaded.blocks)
            run.progress.note(f"{loaded.name}: {loaded.why}")
            _save_facts(run, loaded, facts)
        return loaded


def _load_same(run: Run, model: Any) -> tuple[Model, dict[str, str]]:
    """Load the model with its weights hash and dtype; a UserError where the run's differ."""
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
    before, bounds = store.info.get("model", facts), Budget.of(loaded)
    # A continued run keeps its batch bounds: batches of other sizes would round differently.
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
    store, config, before = run.store, run.config, run.store.info
    here = {name: getattr(model, name) for name in ("name", "source", "revision", "adapter")}
    here |= {"blocks": model.blocks, "width": model.parts.width, "why": model.why}
    here |= {"device": str(model.device), "bounds": asdict(Budget.of(model))}
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
            # The size the run began with: files are numbered by shard.
            "shard": before.get("shard") or config.shard or shard_of(model),
            "versions": versions(),
            "git": git_revision(),
            "started": before.get("started") or time.strftime("%Y-%m-%d %H:%M"),
        }
    )
