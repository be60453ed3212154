"""Sample further answers for a run, and read its answers in other surface forms.

A detector trained on bare answers alone mistakes the form of an answer for an error. So detectors
learn from the same answers with a full stop, in lower case, bold, as a sentence and as JSON, and
are evaluated on each of these surfaces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from anchorscope.answers.generate import Answerer
from anchorscope.detect.prompts import Bound, Example, bind_prompts, common_prefix
from anchorscope.detect.read_answers import Task, read_answers, sample_answers
from anchorscope.evidence.shards import Shards, evidence_name
from anchorscope.models import Model
from anchorscope.progress import Progress
from anchorscope.records import Sample
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import SAMPLED_ROWS, SURFACE_ROWS

SURFACES: dict[str, Callable[[str], str]] = {
    "full-stop": lambda entity: f"{entity}.",
    "lower-case": str.lower,
    "bold": lambda entity: f"**{entity}**",
    "sentence": lambda entity: f"It is {entity}.",
    "json": lambda entity: json.dumps({"answer": entity}, ensure_ascii=False),
}


def draw_answers(shards: Shards, *, samples: int, temperature: float, max_tokens: int) -> None:
    """Sample answers to all usable questions of a run; shards already on disk are kept."""
    answerer = Answerer(shards.lease.model, max_tokens=max_tokens)

    def work(number: int, dataset: str, answered: list[Sample]) -> None:
        usable = [sample for sample in answered if sample.usable]
        drawn = sample_answers(
            shards.lease,
            answerer,
            common_prefix(usable),
            [sample.prompt_ids for sample in usable],
            [sample.id for sample in usable],
            samples=samples,
            temperature=temperature,
            seed=shards.seed,
        )
        # A finished answer took one more pass: the one that chose the stop token.
        rows = [
            (a.id, n, a.text, float(sum(a.log_probs)), len(a.token_ids),
             len(a.token_ids) + int(a.finished), ms / samples)
            for answers, ms in drawn for n, a in enumerate(answers)
        ]  # fmt: skip
        shards.save_table("sampled", number, pd.DataFrame(rows, columns=list(SAMPLED_ROWS)))

    shards.each("sampled answers", lambda n: [evidence_name("sampled", n)], work)


def read_surfaces(
    model: Model,
    store: Store,
    shards: Sequence[Sequence[Sample]],
    *,
    max_tokens: int,
    progress: Progress,
) -> None:
    """Read every usable answer in every surface form, shard by shard; shards on disk are kept."""
    progress.start("surfaces", sum(map(len, shards)))
    bounds: dict[str, Bound | None] = {}
    for number, samples in enumerate(shards):
        names = [evidence_name("surfaces", number)]
        names += [shard_name(f"surface-{surface}", number) for surface in SURFACES]
        usable = [sample for sample in samples if sample.usable]
        if not all(map(store.has, names)) and usable:
            dataset = usable[0].question.dataset
            if dataset not in bounds:
                examples = [
                    Example(question=s.question.text, prompt_ids=s.prompt_ids) for s in usable[:8]
                ]
                bounds[dataset] = bind_prompts(model, examples, finder=None, max_tokens=max_tokens)
            if (bound := bounds[dataset]) is not None:
                _read_shard(bound, store, number, usable)
            else:
                progress.note(
                    f"{dataset}: its prompts are not found again; no other forms are read"
                )
        progress.advance(len(samples))


def _read_shard(bound: Bound, store: Store, number: int, samples: Sequence[Sample]) -> None:
    tasks = []
    for surface, write in SURFACES.items():
        for sample in samples:
            span = sample.answer_span
            assert span is not None, "a usable sample has an exact answer"
            text = write(sample.answer.text[span.start : span.stop])
            task = Task(
                number=len(tasks),
                question=sample.question.text,
                prompt_ids=sample.prompt_ids,
                answer=text,
                answer_ids=bound.answer_tokens(sample.question.text, text),
            )
            tasks.append((surface, sample.id, task))
    rows, states = [], {}
    for batch in read_answers(
        bound.answerer, bound.prefix, [task for *_, task in tasks], token_log_probs=True
    ):
        ends = np.cumsum([len(one.entities) for one in batch.answers])
        for place, one, end in zip(batch.numbers, batch.answers, ends, strict=True):
            if one.entities:  # an answer such as "No." has none in lower case
                surface, id, _ = tasks[place]
                exact, answer = one.entities[0].tokens, one.answer
                rows += [
                    (id, surface, answer.text, n, p, int(n in exact), answer.first_entropy)
                    for n, p in enumerate(answer.log_probs)
                ]
                states[place] = batch.clean[end - 1]
    width = (bound.model.blocks, bound.model.parts.width)
    for surface in SURFACES:
        own = [n for n in sorted(states) if tasks[n][0] == surface]
        stacked = np.array([states[n] for n in own], dtype=np.float16).reshape(len(own), *width)
        ids = [tasks[n][1] for n in own]
        save_states(store, shard_name(f"surface-{surface}", number), ids, stacked)
    table = pd.DataFrame(rows, columns=list(SURFACE_ROWS))
    store.write(evidence_name("surfaces", number), table.to_parquet)
