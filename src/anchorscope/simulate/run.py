"""Make a run folder from simulated states: store them, then analyse them like a real run's."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd

from anchorscope.config import Config
from anchorscope.pipeline.analyse import analyse_given, publish
from anchorscope.pipeline.request import Run
from anchorscope.probes.folds import labelled
from anchorscope.progress import Progress
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.view import ROBUST_TABLE, RunView
from anchorscope.simulate.worlds import Truth, samples_of, simulate_states


def simulate(
    truth: Truth,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> RunView:
    """Make a run of a simulated world in folder `out`; return the finished run.

    Examples:
        >>> from anchorscope.simulate import Truth, simulate
        >>> run = simulate(Truth(world="two-pathways", samples=300, layers=1), out="runs/world")
        >>> run.findings["finding"].tolist()
        ['two-pathways']

    """
    config = config or config_of(truth)
    run = Run.open(out, {"simulate": asdict(truth), **config.identity()}, config, (), progress)
    store = run.store
    if store.info.get("finished") and (store.has(ROBUST_TABLE) or not config.robust):
        return RunView.open(store.path)
    with store.owned():
        _analyse(run, truth)
        return publish(run)


def config_of(truth: Truth, *, robust: bool = False) -> Config:
    """The default config for the run of a simulated world."""
    return Config(model=truth.world, data=("simulated",), seed=truth.seed, robust=robust)


def _analyse(run: Run, truth: Truth) -> None:
    """Store the states, compute probes and tables as in a real run, and write truth.csv."""
    begun, store, config = time.monotonic(), run.store, run.config
    world = simulate_states(truth)
    samples = samples_of(truth, world)
    ids = [sample.id for sample in samples]
    for name, states in world.states.items():
        save_states(store, shard_name(name, 0), ids, states)
    options = [word for name, value in asdict(truth).items() for word in (f"--{name}", str(value))]
    analyse_given(
        run,
        samples,
        labelled(samples, "simulated", config),
        title="Simulated",
        command=shlex.join(["anchorscope", "simulate", *options, "--out", str(store.path)]),
        model={
            "name": f"Simulated: {truth.world}",
            "blocks": truth.layers,
            "width": truth.width,
            "dtype": "float32",
            "device": "cpu",
            "prompt": "none",
            "why": "simulated states with a known truth, no model",
        },
    )
    if config.robust:
        from anchorscope.pipeline.variants import robust_table  # with torch, for its passes

        table = robust_table(run, {"simulated": samples}, [])
        store.write(ROBUST_TABLE, partial(table.to_csv, index=False))
    planted = {"z": world.z, "dose": world.samples.dose, "missed": world.samples.missed}
    table = pd.DataFrame({"id": ids, **planted})
    store.write("tables/truth.csv", partial(table.to_csv, index=False))
    seconds = round(time.monotonic() - begun, 2)
    store.save_info({"stages": {"simulate": {"seconds": seconds, "tokens": 0}}})
