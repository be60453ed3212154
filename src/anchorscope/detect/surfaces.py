"""Read a run's answers again as others would write them: full stop, case, bold, sentence, JSON.

A detector that saw bare answers alone takes the form of an answer for an error. So detectors learn
from the same answers on several surfaces, and are evaluated on each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from anchorscope.detect.deployed.bind import Bound, Example, bind_prompts
from anchorscope.detect.deployed.read_answers import Task, read_answers
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.progress import Progress
from anchorscope.records import Sample
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import SURFACE_ROWS

SURFACES: dict[str, Callable[[str], str]] = {
    "full-stop": lambda entity: f"{entity}.",
    "lower-case": str.lower,
    "bold": lambda entity: f"**{entity}**",
    "sentence": lambda entity: f"It is {entity}.",
    "json": lambda entity: json.dumps({"answer": entity}, ensure_ascii=False),
}
STAGE = "surfaces"


def pass_name(surface: str) -> str:
    """The name that a surface's states have in the run folder."""
    return f"surface-{surface}"


def table_name(number: int) -> str:
    """The name of a shard's table in the run folder."""
    return f"evidence/surfaces/{number:05d}.parquet"


def read_surfaces(
    model: Model,
    store: Store,
    shards: Sequence[Sequence[Sample]],
    *,
    max_tokens: int,
    progress: Progress,
) -> None:
    """Read every usable answer on every surface, a shard at a time; what is there is kept."""
    progress.start(STAGE, sum(map(len, shards)))
    bounds: dict[str, Bound] = {}
    for number, samples in enumerate(shards):
        names = [table_name(number), *(shard_name(pass_name(s), number) for s in SURFACES)]
        usable = [sample for sample in samples if sample.usable]
        if not all(map(store.has, names)) and usable:
            dataset = usable[0].question.dataset
            if dataset not in bounds:
                bounds[dataset] = _bound(model, usable, max_tokens)
            _read_shard(bounds[dataset], store, number, usable)
        progress.advance(len(samples))


def _bound(model: Model, samples: Sequence[Sample], max_tokens: int) -> Bound:
    examples = [Example(question=s.question.text, prompt_ids=s.prompt_ids) for s in samples[:8]]
    bound = bind_prompts(model, examples, finder=None, max_tokens=max_tokens)
    if bound is None:
        raise UserError(
            f"The tokenizer of {model.name} does not give the tokens of the run's prompts. Read "
            "the run with the model that made it."
        )
    return bound


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
            if one.entities:  # of "No.", in lower case, nothing may be left
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
        save_states(store, shard_name(pass_name(surface), number), ids, stacked)
    store.write(table_name(number), pd.DataFrame(rows, columns=list(SURFACE_ROWS)).to_parquet)
