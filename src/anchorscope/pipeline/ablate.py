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

from anchorscope.config import Config, Finder
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN, KNOCKOUT, knockout_of
from anchorscope.errors import unknown
from anchorscope.evidence.pieces import Tables
from anchorscope.pathways.band import best_layer
from anchorscope.pathways.effects import delta_p
from anchorscope.pathways.grouping import pathways
from anchorscope.pathways.parts import READ, asked_of, draws_of, whole_finding
from anchorscope.pipeline.prepare import Shard, exact_question_by
from anchorscope.pipeline.shard import ask_and_read
from anchorscope.pipeline.stages import Run
from anchorscope.probes.labelled import Labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.probes.readings import Readings, read
from anchorscope.records import Estimate
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import StateBank, load_states
from anchorscope.stats.intervals import difference_of_means

Choice = Literal["spans", "where", "layers"]
_FINDERS: tuple[Finder, ...] = ("rules", "all")
_OTHERWISE = (("where", "pre"), ("where", "post"), ("layers", "cumulative"),
              ("layers", "window:5"), ("layers", "single"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One choice made otherwise, and the knockout that goes with it."""

    name: str  # as the table writes it
    intervention: Intervention
    finder: Finder | None = None  # another finder of the exact question tokens


def variants_of(config: Config) -> list[Variant]:
    """Every other value of the choices that the config asks to ablate."""
    asked = config.ablate
    for choice in asked:
        if choice not in get_args(Choice):
            raise unknown("choice to ablate", choice, get_args(Choice))
    variants = []
    as_run = knockout_of(config)
    for finder in _FINDERS if "spans" in asked else ():
        cut = replace(as_run, name=f"knockout-spans-{finder}")
        variants.append(Variant(name=f"spans={finder}", intervention=cut, finder=finder))
    for choice, value in _OTHERWISE:
        if choice in asked and value != getattr(as_run, choice):
            name = f"knockout-{choice}-{value.replace(':', '')}"
            cut = replace(as_run, **{"name": name, choice: value})
            variants.append(Variant(name=f"{choice}={value}", intervention=cut))
    return variants


def read_variants(run: Run, lease: Lease, shards: Sequence[Shard]) -> None:
    """The same answers read once more for every choice that is to be made otherwise."""
    for variant in variants_of(run.config):
        exact = None if variant.finder is None else exact_question_by(run, lease, variant.finder)
        cut = [variant.intervention]
        ask_and_read(run, lease, shards, cut, name=variant.name, exact_question=exact)


def ablation_tables(run: Run, answers: Sequence[Labelled], *, shards: int) -> Tables:
    """ablate.csv where it was asked for: one row per dataset and variant, the run itself first."""
    variants = variants_of(run.config)
    if not variants:
        return {}
    with run.stage("ablation"):
        rows = [row for of in answers for row in _rows(run, of, variants, shards)]
    return {"ablate": pd.DataFrame(rows, columns=list(table_columns.ABLATION))}


def _rows(run: Run, answers: Labelled, variants: Sequence[Variant], shards: int) -> list[tuple]:
    bank = StateBank(run.store.path, list(answers.ids))
    base = {n: load_states(run.store, n, answers.ids, shards) for n in READ if n in bank.names}
    probes = ProbeSet.load(run.store.file(f"probes/{answers.dataset}"))
    rows = [_row("as run", answers, base, probes, bank, run.config)]
    for variant in variants:
        name = variant.intervention.name
        states = base | {KNOCKOUT.name: load_states(run.store, name, answers.ids, shards)}
        # The retest was read with the run's own knockout.
        states = {n: of for n, of in states.items() if not n.startswith("retest")}
        other = bank.renamed({KNOCKOUT.name: name})
        rows.append(_row(variant.name, answers, states, probes, other, run.config))
    return rows


def _row(
    name: str,
    answers: Labelled,
    states: Mapping[str, np.ndarray],
    probes: ProbeSet,
    bank: StateBank,
    config: Config,
) -> tuple:
    readings = read(probes, states, ids=answers.ids, z=answers.z, fold=answers.fold)
    layer = best_layer(readings)
    paper = _paper_gap(readings, layer, config)
    finding = whole_finding(
        asked_of(model="", config=config, answers=answers, readings=readings, bank=bank)
    )
    decided = "holds" if paper.high < 0 else "fails" if paper.low > 0 else "undecided"
    strict = "holds" if finding.name == "two-pathways" else "not shown"
    gap = finding.gap
    return (name, answers.dataset, layer, *paper[:3], decided, *gap[:3], strict, finding.name)


def _paper_gap(readings: Readings, layer: int, config: Config) -> Estimate:
    """ΔP of Q less ΔP of A in paper mode, with its interval."""
    clean, knockout = (readings.at(layer, "paper", n) for n in (CLEAN.name, KNOCKOUT.name))
    group = pathways(readings, probe="paper")[:, layer - 1] == "Q"
    return difference_of_means(delta_p(clean, knockout), group, draws_of(config))
