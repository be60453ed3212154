"""Collect what detectors learn from: answers, their states, P(True), and no analysis of pathways.

Answers drawn beside the greedy ones are a stage of their own: they cost as much again, many times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorscope.config import Config
from anchorscope.detect.draw import draw_answers
from anchorscope.detect.surfaces import read_surfaces
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CAUGHT, knockout_of
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import piece_of
from anchorscope.evidence.shards import Shards
from anchorscope.pipeline.executor import check_spread, open_reader, threads_of_run
from anchorscope.pipeline.model import load_again
from anchorscope.pipeline.read_evidence import read_pieces
from anchorscope.pipeline.read_states import read_states
from anchorscope.pipeline.request import Questions, check_place, command_of, resolve
from anchorscope.pipeline.stages import Run, count_answers, stored_answers, stored_samples
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

COLLECTED = ("detectors",)  # the pieces of evidence that a folder for detectors has


def collect(
    model: Any = None,
    questions: Questions | None = None,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder `out`, ready for detectors; continued where it stopped if it is there already.

    `model` and `questions` are what `run` takes.
    """
    config, sets, identity = resolve(model, questions, config or Config())
    check_spread(config, model)
    passes = len(CAUGHT) + len(collected_passes(config))
    check_place(config, sets, out, model, passes=passes)
    run = Run.open(out, identity | {"only": "detectors"}, config, sets, progress)
    store = run.store
    if config.rank is not None:
        _read(run, model)
    elif not (store.info.get("finished") and run.whole()):
        with store.owned(withdraw=True):
            store.save_info({"command": command_of(config, store.path, verb="detect collect")})
            _read(run, model)
            samples = [sample for own in stored_samples(store).values() for sample in own]
            store.write("samples.parquet", to_frame(samples).to_parquet)
            store.save_info({"finished": True})
    return store.path


def collected_passes(config: Config) -> list[Intervention]:
    """The passes of a folder for detectors."""
    more = (cut for name in COLLECTED for cut in piece_of(name).passes(config))
    return [knockout_of(config), *more]


def _read(run: Run, model: Any) -> None:
    """Read what detectors learn from."""
    with open_reader(run, model) as reader:
        read_states(run, reader, collected_passes(run.config))
        read_pieces(run, reader, COLLECTED)
    if run.config.rank is None:
        shards = [stored_answers(run.store, number) for number in range(count_answers(run.store))]
        with run.stage("surfaces"), threads_of_run(run.config, run.store.info):
            read_surfaces(
                load_again(run, model),
                run.store,
                shards,
                max_tokens=run.config.max_tokens,
                progress=run.progress,
            )


def add_samples(
    folder: str | Path,
    *,
    samples: int,
    temperature: float = 1.0,
    model: Any = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Path:
    """The finished run in `folder` with `samples` drawn answers to each question beside it.

    Continued where it stopped. `model` is the run's own, loaded; or `config`, what `collect` was
    asked for, names it. The name in run.json is never loaded: the folder may come from elsewhere.
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
        with threads_of_run(config, store.info), Lease(load_again(run, model)) as lease:
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


def check_sampling(samples: int, temperature: float) -> None:
    """Raise a UserError where answers cannot be drawn so."""
    if samples < 2:
        raise UserError(f"--samples is {samples}. Accepted: 2 or more, or leave it out.")
    if not 0 < temperature < float("inf"):
        raise UserError(f"--temperature is {temperature}. Accepted: a number above 0.")
