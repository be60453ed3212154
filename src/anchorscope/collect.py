"""What detectors are made of: answers, their states, P(True), and no analysis of pathways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorscope.asked import Questions, command_of, settled
from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.evidence.collect import reweightings
from anchorscope.evidence.ptrue import collect_p_true
from anchorscope.progress import Progress, Quiet
from anchorscope.samples import to_frame
from anchorscope.stages import Stages
from anchorscope.store import Store


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
    config, sets, identity = settled(model, questions, config or Config())
    store = Store.open(out, identity | {"only": "detectors"})
    if not store.info.get("finished"):
        store.save_info({"command": command_of(config, store.path, verb="detect collect")})
        _collect(Stages(store, config, sets, progress or Quiet()), model)
    return store.path


def _collect(stages: Stages, given: Any) -> None:
    c = stages.config
    cut = Intervention(name="knockout", keys=c.keys, where=c.where, layers=c.layers)
    with Lease(stages.model(given)) as lease:
        prepared = stages.prepare(lease)
        samples = stages.extract(lease, prepared, [cut, *reweightings()])
        with stages.stage("P(True)"):
            shards = stages.evidence_shards(lease, prepared, samples)
            collect_p_true(shards, style=stages.style(lease).name)
    frame = to_frame(samples)
    stages.store.write("samples.parquet", frame.to_parquet)
    stages.store.save_info({"finished": True})
