"""How the verdicts move when a choice is made otherwise, over the very same answers.

Only the knocked-out states are read anew: other exact question tokens, the cut after the softmax,
or in a window of blocks. Answers, clean states, folds and probes stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import pandas as pd

from anchorscope.analyse import Labelled, effort_of, verdict_of
from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.errors import unknown
from anchorscope.pathways.effects import delta_p
from anchorscope.pathways.examine import examine
from anchorscope.pathways.grouping import pathways
from anchorscope.pathways.strict import difference_of_means
from anchorscope.pathways.verdict import choose_layer
from anchorscope.probes.probeset import ProbeSet
from anchorscope.probes.readings import Readings, read
from anchorscope.states import load_states
from anchorscope.store import Store

Choice = Literal["spans", "where", "layers"]
COLUMNS = ["variant", "dataset", "layer", "paper_gap", "paper_low", "paper_high", "paper_verdict",
           "strict_gap", "band_low", "band_high", "strict_verdict", "finding"]  # fmt: skip
_OTHERWISE = (("where", "pre"), ("where", "post"), ("layers", "cumulative"),
              ("layers", "window:5"), ("layers", "single"))  # fmt: skip
_STRICT = {"two-pathways": "holds", "undecided": "undecided"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One choice made otherwise, and the knockout that goes with it."""

    name: str  # as the table writes it
    intervention: Intervention
    finder: str | None = None  # another finder of the exact question tokens


def variants(asked: Sequence[str], config: Config) -> list[Variant]:
    """Every other value of the choices asked for."""
    for choice in asked:
        if choice not in get_args(Choice):
            raise unknown("choice to ablate", choice, get_args(Choice))
    found = []
    as_run = Intervention(
        name="knockout", keys=config.keys, where=config.where, layers=config.layers
    )
    for finder in ("rules", "all") if "spans" in asked else ():
        cut = replace(as_run, name=f"knockout-spans-{finder}")
        found.append(Variant(name=f"spans={finder}", intervention=cut, finder=finder))
    for choice, value in _OTHERWISE:
        if choice in asked and value != getattr(as_run, choice):
            name = f"knockout-{choice}-{value.replace(':', '')}"
            cut = replace(as_run, **{"name": name, choice: value})
            found.append(Variant(name=f"{choice}={value}", intervention=cut))
    return found


def ablation_table(
    store: Store,
    parts: Sequence[Labelled],
    asked: Sequence[Variant],
    *,
    shards: int,
    config: Config,
) -> pd.DataFrame:
    """One row per dataset and variant, the run as it is first."""
    rows = []
    for part in parts:
        base = {n: load_states(store, n, part.ids, shards) for n in ("clean", "random", "knockout")}
        probes = ProbeSet.load(store.file(f"probes/{part.dataset}"))
        rows.append(_row("as run", part, base, probes, config))
        for variant in asked:
            other = load_states(store, variant.intervention.name, part.ids, shards)
            rows.append(_row(variant.name, part, base | {"knockout": other}, probes, config))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    name: str, part: Labelled, states: Mapping[str, np.ndarray], probes: ProbeSet, config: Config
) -> tuple:
    readings = read(probes, states, ids=part.ids, z=part.z, fold=part.fold)
    layer = choose_layer(readings)
    paper = _paper_gap(readings, layer, config)
    examined = examine(readings, layer, effort_of(config))
    verdict = verdict_of(states, readings, examined, part, config)
    decided = "holds" if paper.high < 0 else "fails" if paper.low > 0 else "undecided"
    strict = _STRICT.get(verdict.finding, "fails")
    gap = verdict.gap
    return (name, part.dataset, layer + 1, *paper[:3], decided, *gap[:3], strict, verdict.finding)


def _paper_gap(readings: Readings, layer: int, config: Config):
    """ΔP of Q less ΔP of A in paper mode, with its interval."""
    clean = readings.of("paper")[:, layer]
    effect = delta_p(clean, readings.of("paper", "knockout")[:, layer])
    group = pathways(readings, probe="paper")[:, layer] == "Q"
    return difference_of_means(effect, group, replace(effort_of(config), points="points"))
