"""Read the run's probes under every pass whose states are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anchorscope.engine.interventions import CLEAN, KNOCKOUT, QUESTION_ONLY
from anchorscope.pathways.effects import ROLES
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.view import RunView, values, where
from anchorscope.show.charts import INTERVENTIONS

# The states at the last question token are another position's: these probes do not read them.
_NOT_READ = frozenset({CLEAN.name, KNOCKOUT.name, QUESTION_ONLY})
Logits = dict[str, dict[Mode, np.ndarray]]  # pass -> mode -> [sample, layer]


@dataclass(frozen=True)
class Beliefs:
    """Logits of "wrong" [sample, layer] in the order of `ids`; NaN where no probe read a sample."""

    ids: tuple[str, ...]
    logits: Logits
    pathway: Mapping[Mode, np.ndarray]  # [sample, layer]: 0 not read, 1 Q, 2 A


def beliefs_of(run: RunView) -> Beliefs:
    """The logits of a run under every stored pass, with the pathways.

    Clean and knocked out come from pathways.parquet, the other passes from states and probes.
    """
    ids, layers = tuple(map(str, values(run.samples, "id"))), layers_of(run)
    pathway = values(run.pathways, "pathway")
    table = run.pathways.assign(group=(pathway == "Q") + 2.0 * (pathway == "A"))
    place = {id: row for row, id in enumerate(ids)}

    def spread(mode: Mode, column: str) -> np.ndarray:
        """The column as [sample, layer]; NaN for samples that are not in the table."""
        rows = where(table, mode=mode)
        out = np.full((len(ids), layers), np.nan)
        at = np.array([place[id] for id in rows["id"]], dtype=int)
        out[at, values(rows, "layer").to_numpy(int) - 1] = values(rows, column).to_numpy(float)
        return out

    columns = {CLEAN.name: "logit_clean", KNOCKOUT.name: "logit_knockout"}
    logits: Logits = {
        name: {mode: spread(mode, column) for mode in MODES} for name, column in columns.items()
    }
    groups: dict[Mode, np.ndarray] = {
        mode: np.nan_to_num(spread(mode, "group")).astype(np.uint8) for mode in MODES
    }
    return Beliefs(ids, logits | _from_states(run, ids, layers), groups)


def layers_of(run: RunView) -> int:
    """The number of layers that the run's probes read."""
    return int(values(run.layers, "layer").max())


def _from_states(run: RunView, ids: tuple[str, ...], layers: int) -> Logits:
    """The logits under the further passes; none where the folder holds no states or probes."""
    probes = {
        dataset: ProbeSet.load(folder)
        for dataset in run.datasets
        if (folder := run.path / "probes" / dataset).is_dir()
    }
    if not probes or "fold" not in run.samples.columns or not (run.path / "states").is_dir():
        return {}
    folds = values(run.samples, "fold").astype("Float64").to_numpy(float, na_value=np.nan)
    datasets = values(run.samples, "dataset").to_numpy()
    rows = {d: np.flatnonzero((datasets == d) & ~np.isnan(folds)) for d in probes}
    bank, order = StateBank(run.path, list(ids)), list(INTERVENTIONS)
    # The passes of every run first, then the others by name.
    names = sorted(
        bank.names - _NOT_READ, key=lambda n: (order.index(n) if n in order else len(order), n)
    )
    logits: Logits = {n: {m: np.full((len(ids), layers), np.nan) for m in MODES} for n in names}
    for name in names:
        for layer in range(1, layers + 1):
            states = bank.layer(name, layer)
            for dataset, own in probes.items():
                at = rows[dataset]
                fold = folds[at].astype(int)
                read = own.at_layer(layer).logits(states[at][:, None], fold)[:, :, 0]
                for mode in MODES:
                    logits[name][mode][at, layer - 1] = read[own.probes.index(ROLES[mode].effect)]
    return logits
