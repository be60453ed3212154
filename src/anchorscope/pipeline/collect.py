"""What detectors are made of: answers, their states, P(True), and no analysis of pathways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorscope import ranks
from anchorscope.config import Config
from anchorscope.pipeline.evidence import read_pieces
from anchorscope.pipeline.request import Questions, command_of, resolve
from anchorscope.pipeline.shard import ask_and_read
from anchorscope.pipeline.spread.by_rank import COLLECTED, collected_passes, read_of_rank
from anchorscope.pipeline.spread.lend import lent
from anchorscope.pipeline.spread.machine import check_spread
from anchorscope.pipeline.stages import Run
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.store import Store


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
    if config.device == ranks.TENSOR_PARALLEL:
        ranks.begin()
    check_spread(config, model)
    store = Store.open(out, identity | {"only": "detectors"})
    run = Run(store=store, config=config, sets=sets, progress=progress or Quiet())
    if config.rank is not None:
        read_of_rank(run, model)
    elif not store.info.get("finished"):
        with store.owned():
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
    ranks.wait()  # none returns before the folder says so
