"""Prepare questions for the model: make prompts, find their tokens, cut them into shards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from anchorscope.answers.generate import Style, settle_style, write_lines
from anchorscope.answers.prompted import (
    Prompted,
    Shard,
    cut_into_shards,
    prompts_of,
    retest_prompts,
)
from anchorscope.answers.verdicts import count_verdicts, read_verdicts
from anchorscope.config import Finder
from anchorscope.engine.lease import Lease
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.models.parts import check_row
from anchorscope.pipeline.request import Run
from anchorscope.records import QuestionSet
from anchorscope.spans.question import find_spans, spans_table


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
        for questions in run.sets:
            prompts = prompts_by(run, lease, questions, run.config.finder)
            if verdicts:
                prompts = [replace(p, verdict=verdicts.get(p.question.id)) for p in prompts]
            again = retest_prompts(lease.model, questions, prompts, style=style, shots=shots)
            shards += cut_into_shards(
                prompts, questions.name, size, first=len(shards), retest=again
            )
        found = [prompt.spans for shard in shards for prompt in shard.prompts]
        table = spans_table([question for each in run.sets for question in each], found)
        run.store.write("tables/spans.csv", partial(table.to_csv, index=False))
    return shards


def prompt_maker(run: Run, lease: Lease) -> PromptMaker:
    """Make a function that prompts questions like those of the run."""
    shots = {questions.name: questions.shots[: run.config.shots] for questions in run.sets}
    style = style_of(run, lease).name
    return PromptMaker(model=lease.model, style=style, seed=run.config.seed, shots=shots)


def prompts_by(run: Run, lease: Lease, questions: QuestionSet, finder: Finder) -> list[Prompted]:
    """Make the run's prompts for a question set, with spans found by `finder`."""
    generate = partial(write_lines, lease, max_tokens=24)
    spans = find_spans(questions.questions, finder=finder, generate=generate)
    style = style_of(run, lease).name
    prompts = prompts_of(lease.model, questions, spans, style=style, shots=run.config.shots)
    longest = max((len(prompt.prompt_ids) for prompt in prompts), default=0)
    check_row(lease.model.lm, lease.model.name, longest + run.config.max_tokens)
    return prompts


def style_of(run: Run, lease: Lease) -> Style:
    """The prompt style of the run, chosen once and kept when the run is continued."""
    facts, c = run.store.info["model"], run.config
    if "prompt" in facts:
        return Style(facts["prompt"], facts["prompt_why"])
    style = settle_style(lease, run.sets, wanted=c.prompt, shots=c.shots, max_tokens=c.max_tokens)
    run.progress.note(f"prompts as {style.name}: {style.why}")
    run.store.save_info({"model": facts | {"prompt": style.name, "prompt_why": style.why}})
    return style
