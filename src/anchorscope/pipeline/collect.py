"""Collect training data for detectors: answers, their states and P(True), without pathways.

Sampled answers are a separate stage: they cost many times as much as the greedy ones.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from anchorscope.config import Config
from anchorscope.detect.collected import check_sampling, draw_answers, questions_of, read_rows
from anchorscope.detect.read_answers import StatesFolder
from anchorscope.detect.rows import rows_of_file
from anchorscope.engine.interventions import CAUGHT, Intervention, knockout_of
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import piece_of
from anchorscope.evidence.shards import Shards
from anchorscope.pipeline.executor import check_spread, open_reader
from anchorscope.pipeline.prepare import load, threads_of_run
from anchorscope.pipeline.read_states import read_pieces, read_states
from anchorscope.pipeline.request import Questions, Run, command_of, resolve
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet
from anchorscope.run_folder.samples import (
    answers_name,
    count_answers,
    stored_answers,
    stored_samples,
    to_frame,
)
from anchorscope.run_folder.states import shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

COLLECTED = "detectors"  # the piece of evidence in a folder for detectors


def collect(
    model: Any = None,
    questions: Questions | None = None,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Path:
    """Collect training data for detectors in folder `out`, or continue where it stopped.

    `model` and `questions` are as in `run`. Returns the folder.
    """
    config, sets, identity = resolve(model, questions, config or Config())
    check_spread(config, model)
    passes = len(CAUGHT) + len(collected_passes(config))
    identity |= {"only": "detectors"}
    run = Run.open(out, identity, config, sets, progress, model=model, passes=passes)
    store = run.store
    if config.rank is not None:
        _read(run, model)
    elif not (store.info.get("finished") and run.whole()):
        with store.owned(withdraw=True):
            store.save_info({"command": command_of(config, store.path, verb="detect collect")})
            _read(run, model)
            _finish(run)
    return store.path


def _finish(run: Run) -> None:
    """Write samples.parquet, and mark the folder as finished."""
    samples = [sample for own in stored_samples(run.store).values() for sample in own]
    run.store.write("samples.parquet", to_frame(samples).to_parquet)
    run.store.save_info({"finished": True})


def collected_passes(config: Config) -> list[Intervention]:
    """The interventions whose passes detectors need."""
    return [knockout_of(config), *piece_of(COLLECTED).passes(config)]


def _read(run: Run, model: Any) -> None:
    """Read the answers, states and outputs that detectors need."""
    with open_reader(run, model) as reader:
        read_states(run, reader, collected_passes(run.config))
        read_pieces(run, reader, [COLLECTED])


ROWS = 256  # rows of the user's that are read and stored together


def collect_answers(
    place: str | Path,
    *,
    out: str | Path,
    model: Any = None,
    config: Config | None = None,
    states: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Collect training data for detectors from the user's own answers, in folder `out`.

    Each row has `messages`, `prompt` or `question`, an `answer` and a `label`. The answers are
    read in one pass; the model generates nothing. A row's `entity` keeps rows about one thing in
    one fold; by default the question is the entity. With a folder of `states` that another program
    wrote for these answers nothing goes through the model, whose tokenizer and weights' identity
    alone are used. Continues an unfinished folder; returns it.
    """
    config, rows = config or Config(), rows_of_file(place)
    name = "stdin" if str(place) == "-" else Path(place).stem
    questions, given = questions_of(rows, name)
    source = config.model if model is None else model.source
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
    identity = {"model": source, "answers": digest[:16], "data": [name], "only": "detectors"}
    identity["states_from"] = states and str(states)
    sets = [QuestionSet(name=name, title=name, questions=questions, shots=())]
    run = Run.open(out, identity, replace(config, shard=ROWS), sets, progress)
    store = run.store
    with store.owned(withdraw=True), threads_of_run(config, store.info):
        lm = load(run, model)
        folder = None if states is None else StatesFolder(states, lm)
        store.save_info({"given_prompts": True})
        run.progress.start("answers and states", len(rows))
        for number, start in enumerate(range(0, len(rows), ROWS)):
            part = slice(start, start + ROWS)
            files = [answers_name(number), shard_name("clean", number)]
            if not all(map(store.has, files)):
                read_rows(
                    store, lm, number, questions[part], given[part], run.progress.note, folder
                )
            run.progress.advance(len(rows[part]))
        _finish(run)
    return store.path


def add_samples(
    folder: str | Path,
    *,
    samples: int,
    temperature: float = 1.0,
    model: Any = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Path:
    """Add `samples` sampled answers to each question of a run, or continue where it stopped.

    `model` is the run's own model, loaded; without it, `config` names the model. The name in
    run.json is never loaded, since the folder may come from elsewhere. Returns the folder.
    """
    check_sampling(samples, temperature)
    if model is None and config is None:
        raise UserError("Which model draws the answers? Give it, or the config of the run.")
    view = RunView.open(folder, collected_ok=True)
    store, sampling = Store(view.path), {"samples": samples, "temperature": temperature}
    before = store.info.get("sampled", sampling)
    if before != sampling:
        raise UserError(
            f"{view.path} has {before['samples']} drawn answers to each question at temperature "
            f"{before['temperature']}. Ask for the same, or collect into another --out."
        )
    config = config or Config.restore(store.info["config"])
    run = Run(store=store, config=config, progress=progress or Quiet())
    with store.owned():
        store.save_info({"sampled": sampling})
        answered = [stored_answers(store, number) for number in range(count_answers(store))]
        with threads_of_run(config, store.info), Lease(load(run, model, again=True)) as lease:
            shards = Shards(lease, store, answered, seed=config.seed, progress=run.progress)
            with run.stage("sampled"):
                draw_answers(
                    shards,
                    samples=samples,
                    temperature=temperature,
                    max_tokens=config.max_tokens,
                )
        store.save_info({"finished": True})
    return view.path
