"""A simulated run with every other piece of evidence, made by the package's own functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anchorscope.config import Config
from anchorscope.evidence.heads import heads_agreement
from anchorscope.evidence.pieces import PieceInputs, evidence_tables
from anchorscope.probes.folds import Covariates
from anchorscope.probes.probe_set import ProbeSet, Readings
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show.claims import claims_of
from anchorscope.simulate import Truth, simulate

PIECES = ("patching", "answer-only", "saliency", "boundary", "awareness", "heads", "windows")
STORED = ("clean", "knockout", "neutral", "question", "answer-only")
STAND_INS = {  # pass that needs a model: stored pass used in its place
    "patch-matched": "question", "patch-other": "neutral", "patch-self": "clean",
    "window-5": "knockout", "single": "neutral", "question-only": "neutral",
}  # fmt: skip


def simulated_run(folder: Path) -> RunView:
    """A small world of two pathways with all evidence."""
    truth = Truth(world="two-pathways", samples=160, layers=2, width=12, noise=0.25, seed=4)
    simulated(folder, truth)
    return add_evidence(folder)


@contextmanager
def without_pictures(*names: str) -> Iterator[None]:
    """Runs of this process write neither figures nor a report, or only those are left out."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names or ("write_figures", "write_report"):
            patch.setattr(f"anchorscope.pipeline.analyse.{name}", lambda view: None)
        yield


def simulated(folder: Path, truth: Truth, **options: Any) -> RunView:
    """A simulated run without figures and report; `options` are fields of its config."""
    quick = {"resamples": 100, "fold_seeds": 1}
    with without_pictures():
        config = Config(model="x", data=("simulated",), **quick | options)
        return simulate(truth, out=folder, config=config)


def used_samples(folder: Path, dataset: str = "simulated") -> pd.DataFrame:
    samples = pd.read_parquet(folder / "samples.parquet")
    return samples[(samples["dataset"] == dataset) & samples["fold"].notna()]


def readings_of(folder: Path) -> tuple[Readings, dict[str, np.ndarray]]:
    """Readings under stored and stand-in interventions, and the states behind them."""
    used = used_samples(folder)
    ids = list(used["id"])
    states = {name: StateBank(folder, ids).all_layers(name) for name in STORED}
    states |= {name: states[stored] for name, stored in STAND_INS.items()}
    z = (used["verdict"] == "wrong").to_numpy().astype(int)
    fold = used["fold"].to_numpy(dtype=int)
    probes = ProbeSet.load(folder / "probes" / "simulated")
    logits = {name: probes.logits(own, fold) for name, own in states.items()}
    readings = Readings(ids=tuple(ids), z=z, fold=fold, probes=probes.probes, logits=logits)
    return readings, states


def covariates_of(folder: Path) -> Covariates:
    """log10 popularity and length of the prompt."""
    used = used_samples(folder)
    popularity = np.log10(used["popularity"].to_numpy(dtype=float))
    return Covariates(popularity, used["prompt_ids"].map(len).to_numpy(dtype=float))


def inputs_of(folder: Path, readings: Readings, **others: Any) -> PieceInputs:
    """The inputs of a piece of evidence for the simulated dataset."""
    return PieceInputs(
        model="m",
        dataset="simulated",
        config=Config(resamples=100),
        readings=readings,
        covariates=covariates_of(folder),
        **others,
    )


def add_evidence(folder: Path) -> RunView:
    """Add the tables of all evidence to a run, and recompute its claims."""
    readings, states = readings_of(folder)
    salient = saliency_rows(readings)
    (folder / "evidence" / "saliency").mkdir(parents=True, exist_ok=True)
    salient.to_parquet(folder / "evidence" / "saliency" / "00000.parquet")
    rows = {"saliency": salient, "heads": heads_rows(readings)}
    tables = evidence_tables(PIECES, inputs_of(folder, readings, states=states, rows=rows))
    tables["heads_agreement"] = heads_agreement(tables["heads"])
    store = Store(folder)
    for name, table in tables.items():
        store.write(f"tables/{name}.csv", partial(table.to_csv, index=False))
    claims = claims_of([RunView.open(folder)])
    store.write("tables/claims.csv", partial(claims.to_csv, index=False))
    return RunView.open(folder)


def saliency_rows(readings: Readings, *, layers: int = 3) -> pd.DataFrame:
    """Saliency with two modes in every class: half of the questions are 100 times as salient."""
    rng = np.random.default_rng(5)
    n = len(readings.ids)
    size = 10.0 ** (2.0 * (np.arange(n) % 2) + 0.2 * rng.standard_normal(n))
    return pd.DataFrame(
        {
            "id": np.repeat(np.array(readings.ids, dtype=object), layers),
            "dataset": "simulated", "loss": "probe", "source": "exact",
            "layer": np.tile(np.arange(1, layers + 1), n),
            "saliency": np.repeat(size, layers) * rng.uniform(0.2, 0.4, n * layers),
        }
    )  # fmt: skip


def heads_rows(readings: Readings, *, blocks: int = 4, heads: int = 3) -> pd.DataFrame:
    """Readings of cut heads: head 1 of block 2 moves each logit by 1, other heads by 0.05."""
    rng, clean, frames = np.random.default_rng(6), readings.of("paper")[:, -1], []
    places = [(b, h, "") for b in range(1, blocks + 1) for h in range(heads)]
    for block, head, name in [*places, (2, -1, "block"), (0, -4, "top4")]:
        size = 1.0 if (block, head) == (2, 1) or name else 0.05
        moved = clean - size * np.sign(clean) * rng.uniform(0.8, 1.2, len(clean))
        frames.append(
            pd.DataFrame({
                "id": readings.ids, "dataset": "simulated", "block": block, "head": head,
                "set": name, "layer": readings.layers, "logit_clean": clean,
                "logit_knockout": moved,
            })
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)
