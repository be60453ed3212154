"""What detectors are made of: answers, their states, P(True), and no analysis of pathways.

Answers drawn beside the greedy ones are a stage of their own: they cost as much again, many times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorscope.config import Config
from anchorscope.detect.draw import draw_answers
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CAUGHT
from anchorscope.errors import UserError
from anchorscope.evidence.shards import Shards
from anchorscope.pipeline.checks.early import check_place
from anchorscope.pipeline.evidence import read_pieces
from anchorscope.pipeline.model import load_again
from anchorscope.pipeline.request import Questions, command_of, resolve
from anchorscope.pipeline.shard import ask_and_read, stored_answers
from anchorscope.pipeline.spread.by_rank import COLLECTED, collected_passes, read_of_rank
from anchorscope.pipeline.spread.lend import lent
from anchorscope.pipeline.spread.machine import as_begun, check_spread
from anchorscope.pipeline.stages import Run
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView


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
    store = Store.open(out, identity | {"only": "detectors"})
    run = Run(store=store, config=config, sets=sets, progress=progress or Quiet())
    if config.rank is not None:
        read_of_rank(run, model)
    elif not (store.info.get("finished") and run.whole()):
        with store.owned(withdraw=True):
            store.save_info({"command": command_of(config, store.path, verb="detect collect")})
            _collect(run, model)
    return store.path


def _collect(run: Run, model: Any) -> None:
    with lent(run, model) as (run, lease, shards):
        samples = ask_and_read(run, lease, shards, collected_passes(run.config))
        read_pieces(run, lease, shards, samples, COLLECTED)
    frame = to_frame(samples)
    run.store.write("samples.parquet", frame.to_parquet)
    run.store.save_info({"finished": True})


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
    asked for, names it. The name in run.json is never loaded: somebody else may have written it.
    """
    check_sampling(samples, temperature)
    if model is None and config is None:
        raise UserError("Which model draws the answers? Give it, or the config of the run.")
    view = RunView.open(folder, collected_ok=True)
    store, how = Store(view.path), {"samples": samples, "temperature": temperature}
    before = store.info.get("sampled", how)
    if before != how:
        raise UserError(
            f"{view.path} has {before['samples']} drawn answers to each question at temperature "
            f"{before['temperature']}. Ask for the same, or collect into another --out."
        )
    run = Run(
        store=store,
        config=config or Config.restore(store.info["config"]),
        sets=(),
        progress=progress or Quiet(),
    )
    with store.owned():
        store.save_info({"sampled": how})
        _draw(run, model, how)
        store.save_info({"finished": True})
    return view.path


def check_sampling(samples: int, temperature: float) -> None:
    """Raise a UserError where answers cannot be drawn so."""
    if samples < 2:
        raise UserError(f"--samples is {samples}. Accepted: 2 or more, or leave it out.")
    if not 0 < temperature < float("inf"):
        raise UserError(f"--temperature is {temperature}. Accepted: a number above 0.")


def _draw(run: Run, model: Any, how: dict[str, Any]) -> None:
    count = len(list((run.store.path / "answers").glob("*.parquet")))
    answered = [stored_answers(run.store, number) for number in range(count)]
    config, info = run.config, run.store.info
    with as_begun(config, info), Lease(load_again(run, model)) as lease, run.stage("sampled"):
        shards = Shards(lease, run.store, answered, seed=config.seed, progress=run.progress)
        draw_answers(shards, **how, max_tokens=config.max_tokens)
