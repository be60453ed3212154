"""Questions made ready: prompts and their tokens, in shards that any process can compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import pandas as pd

from anchorscope.answers.generate import write_lines
from anchorscope.answers.verdicts import count_verdicts, read_verdicts
from anchorscope.config import Finder
from anchorscope.engine.lease import Lease
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.models.parts import check_row
from anchorscope.pipeline.prompts import (
    Prompted,
    Style,
    common_prefix,
    prompts_of,
    retest_prompts,
    settle_style,
)
from anchorscope.pipeline.stages import Run
from anchorscope.records import Question, Verdict
from anchorscope.spans.question import QuestionSpans, agreement, find_spans


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The unit of work: some questions of one dataset as the model will see them.

    A value without the model or the folder in it: whoever has both can compute it.
    """

    number: int  # of its files, over all datasets
    dataset: str
    prompts: tuple[Prompted, ...]
    prefix: tuple[int, ...]  # the tokens in front of every question of the dataset
    retest: tuple[Prompted, ...] = ()  # those of its questions that are read a second time
    retest_prefix: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)


def prepare(run: Run, lease: Lease) -> list[Shard]:
    """All questions as prompts in shards, dataset after dataset; the same in every process."""
    with run.stage("preparation"):
        shards: list[Shard] = []
        verdicts = _verdicts(run)
        for questions in run.sets:
            prompts = _prompts(run, lease, questions.name, run.config.finder)
            if verdicts:
                prompts = [replace(p, verdict=verdicts.get(p.question.id)) for p in prompts]
            style, shots = style_of(run, lease).name, run.config.shots
            again = retest_prompts(lease.model, questions, prompts, style=style, shots=shots)
            size = run.store.info["shard"]
            shards += cut_into_shards(
                prompts, questions.name, size, first=len(shards), retest=again
            )
        _save_agreement(run, [prompt.spans for shard in shards for prompt in shard.prompts])
    return shards


def _verdicts(run: Run) -> dict[str, Verdict]:
    """The verdicts that a file gives, counted in run.json; none where no file was named."""
    verdicts = read_verdicts(run.config.verdicts)
    if verdicts:
        ids = (question.id for each in run.sets for question in each)
        counted = count_verdicts(verdicts, ids, str(run.config.verdicts))
        run.progress.note(counted.sentence(str(run.config.verdicts)))
        run.store.save_info({"verdicts": asdict(counted)})
    return verdicts


def exact_question_by(run: Run, lease: Lease, finder: Finder) -> dict[str, tuple[int, ...]]:
    """E_Q as another finder marks it, by question id."""
    return {
        prompt.question.id: prompt.exact_question
        for name in run.datasets
        for prompt in _prompts(run, lease, name, finder)
    }


def style_of(run: Run, lease: Lease) -> Style:
    """The prompt style, settled once and kept when the run is continued."""
    facts = run.store.info["model"]
    if "prompt" in facts:
        return Style(facts["prompt"], facts["prompt_why"])
    c = run.config
    style = settle_style(lease, run.sets, asked=c.prompt, shots=c.shots, max_tokens=c.max_tokens)
    run.progress.note(f"prompts as {style.name}: {style.why}")
    facts |= {"prompt": style.name, "prompt_why": style.why}
    run.store.save_info({"model": facts})
    return style


def prompt_maker(run: Run, lease: Lease) -> PromptMaker:
    """How questions are asked in this run."""
    shots = {questions.name: questions.shots[: run.config.shots] for questions in run.sets}
    style = style_of(run, lease).name
    return PromptMaker(model=lease.model, style=style, seed=run.config.seed, shots=shots)


def _prompts(run: Run, lease: Lease, dataset: str, finder: Finder) -> list[Prompted]:
    (questions,) = [each for each in run.sets if each.name == dataset]
    generate = partial(write_lines, lease, max_tokens=24)
    spans = find_spans(questions.questions, finder=finder, generate=generate)
    style = style_of(run, lease).name
    prompts = prompts_of(lease.model, questions, spans, style=style, shots=run.config.shots)
    longest = max((len(prompt.prompt_ids) for prompt in prompts), default=0)
    check_row(lease.model.lm, lease.model.name, longest + run.config.max_tokens)
    return prompts


def cut_into_shards(
    prompts: Sequence[Prompted],
    dataset: str,
    size: int,
    *,
    first: int,
    retest: Sequence[Prompted] = (),
) -> list[Shard]:
    """The prompts of a dataset in shards, numbered from `first` on."""
    prefix, retest_prefix = common_prefix(prompts), common_prefix(retest) if retest else ()
    again = {prompt.question.id: prompt for prompt in retest}
    parts = [tuple(prompts[start : start + size]) for start in range(0, len(prompts), size)]
    return [
        Shard(
            number=number,
            dataset=dataset,
            prompts=part,
            prefix=prefix,
            retest=tuple(again[p.question.id] for p in part if p.question.id in again),
            retest_prefix=retest_prefix,
        )
        for number, part in enumerate(parts, start=first)
    ]


def _save_agreement(run: Run, known: Sequence[QuestionSpans]) -> None:
    """How far the finders that cost nothing agree: tables/spans.csv."""
    table = spans_table([question for each in run.sets for question in each], known)
    run.store.write("tables/spans.csv", partial(table.to_csv, index=False))


def spans_table(questions: Sequence[Question], known: Sequence[QuestionSpans] = ()) -> pd.DataFrame:
    """How far the finders that cost nothing agree, by dataset; what is `known` is kept."""
    finders: tuple[Finder, ...] = ("given", "rules", "all")
    by_finder = {}
    for name in finders:
        found = {of.id: of.spans for of in known if of.finder == name}
        others = [question for question in questions if question.id not in found]
        by_finder[name] = found | {of.id: of.spans for of in find_spans(others, finder=name)}
    return agreement(questions, by_finder)
