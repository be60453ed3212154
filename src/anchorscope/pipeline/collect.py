"""What detectors are made of: answers, their states, P(True), and no analysis of pathways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorscope import ranks
from anchorscope.config import Config
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import knockout_of
from anchorscope.evidence.pieces import piece_of
from anchorscope.pipeline.evidence import read_pieces
from anchorscope.pipeline.model import load
from anchorscope.pipeline.prepare import prepare
from anchorscope.pipeline.request import Questions, command_of, resolve
from anchorscope.pipeline.shard import ask_and_read
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
    store = Store.open(out, identity | {"only": "detectors"})
    if not store.info.get("finished"):
        store.save_info({"command": command_of(config, store.path, verb="detect collect")})
        _collect(Run(store=store, config=config, sets=sets, progress=progress or Quiet()), model)
    return store.path


def _collect(run: Run, model: Any) -> None:
    detectors = piece_of("detectors")
    with Lease(load(run, model)) as lease:
        shards = prepare(run, lease)
        passes = [knockout_of(run.config), *detectors.passes(run.config)]
        samples = ask_and_read(run, lease, shards, passes)
        read_pieces(run, lease, shards, samples, [detectors])
    frame = to_frame(samples)
    run.store.write("samples.parquet", frame.to_parquet)
    run.store.save_info({"finished": True})
    ranks.wait()  # none returns before the folder says so
