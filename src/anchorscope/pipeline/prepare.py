"""Load the model of a run, check that it has not changed, and prepare the run's questions for it.

Preparing makes the prompts, finds their tokens and cuts them into shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from anchorscope.answers.generate import Style, settle_style, write_lines
from anchorscope.answers.given import GivenAnswers, read_answers_file
from anchorscope.answers.prompted import (
    Prompted,
    Shard,
    cut_into_shards,
    prompts_of,
    retest_prompts,
)
from anchorscope.answers.verdicts import count_verdicts, read_verdicts
from anchorscope.config import Config, Finder
from anchorscope.engine.batches import Budget, facts_of, set_facts, shard_of
from anchorscope.engine.check import require_understood
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.models import LOADING, Model, load_model
from anchorscope.models.parts import check_row
from anchorscope.pathways.effects import check_grouping
from anchorscope.pipeline.request import Run, command_of
from anchorscope.records import QuestionSet, Verdict
from anchorscope.run_folder.identity import git_revision, versions, weights_hash
from anchorscope.spans.question import find_spans, spans_table


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
    c, store = run.config, run.store
    with run.stage("model"):
        loaded = load_model(
            c.model if model is None else model,
            **{name: getattr(c, name) for name in LOADING},
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
        if not again:
            check_grouping(c.grouping, loaded.blocks)
            run.progress.note(f"{loaded.name}: {loaded.why}")
            _save_facts(run, loaded, facts)
        return loaded


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


# The questions, as the model will see them.


def prepare(run: Run, lease: Lease) -> list[Shard]:
    """Make the prompts of all questions and cut them into shards, the same in every process."""
    with run.stage("preparation"):
        verdicts = read_verdicts(run.config.verdicts)
        if verdicts:
            ids = (question.id for each in run.sets for question in each)
            counts, sentence = count_verdicts(verdicts, ids, str(run.config.verdicts))
            run.progress.note(sentence)
            run.store.save_info({"verdicts": counts})
        style, shots = style_of(run, lease).name, run.config.shots
        size, shards = run.store.info["shard"], []
        given = read_answers_file(run.config.answers)
        for questions in run.sets:
            prompts = prompts_by(run, lease, questions, run.config.finder, given, verdicts)
            again = retest_prompts(lease.model, questions, prompts, style=style, shots=shots)
            shards += cut_into_shards(
                prompts, questions.name, size, first=len(shards), retest=again
            )
        table = spans_table([question for each in run.sets for question in each])
        run.store.write("tables/spans.csv", partial(table.to_csv, index=False))
    return shards


def prompt_maker(run: Run, lease: Lease) -> PromptMaker:
    """Make a function that prompts questions like those of the run."""
    shots = {questions.name: questions.shots[: run.config.shots] for questions in run.sets}
    style = style_of(run, lease).name
    return PromptMaker(model=lease.model, style=style, seed=run.config.seed, shots=shots)


def prompts_by(
    run: Run,
    lease: Lease,
    questions: QuestionSet,
    finder: Finder,
    given: GivenAnswers = None,
    verdicts: Mapping[str, Verdict] | None = None,  # by question id
) -> list[Prompted]:
    """Make the run's prompts for a question set, with spans found by `finder`."""
    generate = partial(write_lines, lease, max_tokens=24)
    spans = find_spans(questions.questions, finder=finder, generate=generate)
    style = style_of(run, lease).name
    prompts = prompts_of(
        lease.model, questions, spans, style=style, shots=run.config.shots, given=given
    )
    most = max((len(p.given.token_ids) for p in prompts if p.given), default=run.config.max_tokens)
    longest = max((len(prompt.prompt_ids) for prompt in prompts), default=0)
    check_row(lease.model.lm, lease.model.name, longest + most)
    if not verdicts:
        return prompts
    return [replace(p, verdict=verdicts.get(p.question.id)) for p in prompts]


def style_of(run: Run, lease: Lease) -> Style:
    """The prompt style of the run, chosen once and kept when the run is continued."""
    facts, c = run.store.info["model"], run.config
    if "prompt" in facts:
        return Style(facts["prompt"], facts["prompt_why"])
    style = settle_style(lease, run.sets, wanted=c.prompt, shots=c.shots, max_tokens=c.max_tokens)
    run.progress.note(f"prompts as {style.name}: {style.why}")
    run.store.save_info({"model": facts | {"prompt": style.name, "prompt_why": style.why}})
    return style
