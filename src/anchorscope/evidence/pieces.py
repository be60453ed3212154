"""The interface of a piece of evidence: its passes, what it reads from the model, its tables.

A piece is a module of this folder with a value `PIECE`, found by the name that `--evidence` has
for it. The names, and the columns of the tables, are in `run_folder.table_columns`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from anchorscope.config import Config, Delta, unit_of
from anchorscope.engine.interventions import Intervention, passes_of
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.pathways.effects import ROLES, delta_p, pathways, prediction, regroup
from anchorscope.probes.folds import Covariates
from anchorscope.probes.probe_set import Readings
from anchorscope.records import Mode, Shot
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import StoredStates
from anchorscope.stats.intervals import Draws, group_means

if TYPE_CHECKING:  # tables are made in processes that need no model, and should not wait for torch
    from anchorscope.evidence.shards import HeldOut, Shards
    from anchorscope.models import Model

Tables = dict[str, pd.DataFrame]  # by name, as under tables/
Part = Callable[[], Tables]
Subset = Literal["all", "predicted-right", "predicted-wrong", "right", "wrong"]
SUBSETS: tuple[Subset, ...] = get_args(Subset)
PREDICTED: tuple[Subset, ...] = ("all", "predicted-right", "predicted-wrong")
GROUPS = ("Q", "A", "all")


@dataclass(frozen=True, kw_only=True)
class PromptMaker:
    """Make a prompt for a question in the same way as the run did."""

    model: Model
    style: str
    shots: Mapping[str, Sequence[Shot]]  # by dataset, as many as the run gave
    seed: int

    def prompt(self, text: str, *, dataset: str) -> tuple[int, ...]:
        """The tokens of a question, prompted as the questions of that dataset were."""
        from anchorscope.models.prompts import make_prompt

        return make_prompt(self.model, text, shots=self.shots[dataset], style=self.style).ids


@dataclass(frozen=True, kw_only=True)
class PieceInputs:
    """The inputs of an evidence table: one dataset of a run, in the order of its readings."""

    model: str
    dataset: str
    config: Config
    readings: Readings  # under every intervention that was run
    covariates: Covariates
    # By the passes a piece `loads`, [question, layer, width]; from a run, a layer at a time.
    states: Mapping[str, np.ndarray | StoredStates] = field(default_factory=dict)
    abstained: Readings | None = None  # of questions without a class
    rows: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # evidence/<name>, by name

    @property
    def layers(self) -> range:
        """The layers k, from 1."""
        return self.readings.layer_numbers

    @property
    def entity(self) -> np.ndarray:
        """The entity of each question, which a bootstrap draws; its id where none is known."""
        return np.array(list(self.readings.entity_by_id.values()))

    @property
    def draws(self) -> Draws:
        return Draws(seed=self.config.seed, resamples=self.config.resamples)

    @property
    def unit(self) -> Delta:
        return unit_of(self.config.delta)

    def table(
        self, name: str, rows: Iterable[tuple], more_columns: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Make an evidence table; fill in the first two columns, model and dataset."""
        columns = [*table_columns.EVIDENCE[name], *more_columns]
        return pd.DataFrame([(self.model, self.dataset, *row) for row in rows], columns=columns)

    def groups(self, mode: Mode, readings: Readings | None = None) -> Groups:
        """The groups of one mode, by the run's own knockout, of these readings or others."""
        readings = readings or self.readings
        pathway = regroup(pathways(readings, probe=ROLES[mode].group), self.config.grouping)
        predicted = prediction(readings.of(ROLES[mode].effect))
        return Groups(mode=mode, pathway=pathway, predicted=predicted, z=readings.z)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of evidence: what it reads of the model, and its tables."""

    # The tables of one dataset, in parts that any process computes; rows in the parts' order.
    tables: Callable[[PieceInputs], Sequence[Part]] = lambda inputs: ()
    across: Callable[[Tables, Config], Tables] | None = None  # for all datasets together
    passes: Callable[[Config], tuple[Intervention, ...]] = lambda config: ()  # beside every run's
    probed: tuple[str, ...] = ()  # states the probes read for it, beside those of `passes`
    loads: tuple[str, ...] = ()  # states that its tables are made from
    needs_abstained: bool = False
    rows: tuple[str, ...] = ()  # what it stores sample by sample, evidence/<name>, for its tables
    stages: tuple[str, ...] = ()  # in which it reads the model, each of them shard by shard
    read: Callable[[Shards, PromptMaker], None] | None = None  # what needs no probe
    read_with_probes: Callable[[Shards, Mapping[str, HeldOut], Config], None] | None = None


def piece_of(name: str) -> Piece:
    """The piece of evidence that `--evidence` calls by this name."""
    module = import_module(f"anchorscope.evidence.{name.replace('-', '_')}")
    return module.PIECE


def pieces_of(config: Config) -> list[Piece]:
    """The pieces of evidence that a config names; a UserError where its engine has none of it."""
    pieces = {name: piece_of(name) for name in config.evidence}
    own = [name for name, piece in pieces.items() if piece.stages]
    if config.engine == "vllm" and (own or config.where == "post" or "where" in config.ablate):
        asked = f"the evidence {', '.join(own)}" if own else "a cut after the softmax"
        raise UserError(
            f"vLLM does not offer {asked}. Accepted with --engine vllm: --where pre, and the other "
            "evidence; or --engine transformers."
        )
    return [*pieces.values()]


def passes_of_pieces(config: Config) -> tuple[Intervention, ...]:
    """The passes that the pieces of evidence add to those of every run."""
    return tuple(cut for piece in pieces_of(config) for cut in piece.passes(config))


def probed_of(config: Config) -> tuple[str, ...]:
    """The passes whose states the probes read: every run's own, and those of its evidence."""
    own = (*passes_of(config), *passes_of_pieces(config))
    more = (name for piece in pieces_of(config) for name in piece.probed)
    return (*(cut.name for cut in own if cut.boost is None), *more)


def evidence_tables(names: Sequence[str], inputs: PieceInputs) -> Tables:
    """The tables of the pieces with these names, of one dataset."""
    parts: list[Part] = []
    for piece in map(piece_of, names):
        own = {name: table for name, table in inputs.rows.items() if name in piece.rows}
        parts += piece.tables(replace(inputs, rows=own))
    frames: dict[str, list[pd.DataFrame]] = {}
    for tables in in_parallel(lambda part: part(), parts):
        for name, table in tables.items():
            frames.setdefault(name, []).append(table)
    return {name: pd.concat(rows, ignore_index=True) for name, rows in frames.items()}


def evidence_across(tables: Tables, config: Config) -> Tables:
    """The tables that compare datasets, from those of all datasets together."""
    return {
        name: table
        for piece in pieces_of(config)
        if piece.across is not None
        for name, table in piece.across(tables, config).items()
    }


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of one mode. `pathway` comes from the group's probe, ŷ from the effect's."""

    mode: Mode
    pathway: np.ndarray  # [question, layer], "Q", "A", or None where nothing was knocked out
    predicted: np.ndarray  # [question, layer], 1.0 = wrong
    z: np.ndarray  # [question]

    def member(self, pathway: str) -> np.ndarray:
        """The members of a pathway, [question, layer] bool; "all": of either."""
        q, a = self.pathway == "Q", self.pathway == "A"
        return {"Q": q, "A": a, "all": q | a}[pathway]

    def subset(self, name: Subset) -> np.ndarray:
        """The members of a subset, [question, layer] bool."""
        wrong = np.broadcast_to((self.z == 1)[:, None], self.predicted.shape)
        masks = {
            "all": np.ones_like(wrong),
            "predicted-right": self.predicted == 0,
            "predicted-wrong": self.predicted == 1,
            "right": ~wrong,
            "wrong": wrong,
        }
        return masks[name]


def effect_rows(
    inputs: PieceInputs,
    intervention: str,
    groups: Groups,
    *,
    subsets: Sequence[Subset] = SUBSETS,
    pathways: Sequence[str] = GROUPS,
) -> pd.DataFrame:
    """One row per subset, pathway and layer: n, ΔP and logit change with their intervals."""
    readings, draws, probe = inputs.readings, inputs.draws, ROLES[groups.mode].effect
    clean, other = readings.of(probe), readings.of(probe, intervention)
    keys = list(itertools.product(subsets, pathways))
    member = np.hstack([groups.subset(subset) & groups.member(pathway) for subset, pathway in keys])
    frame = {
        "model": inputs.model,
        "dataset": inputs.dataset,
        "layer": np.tile(np.arange(1, readings.layers + 1), len(keys)),
        "mode": groups.mode,
        "subset": np.repeat([subset for subset, _ in keys], readings.layers),
        "pathway": np.repeat([pathway for _, pathway in keys], readings.layers),
    }
    # Both units side by side, so that they share their draws.
    units: dict[str, Delta] = {"delta_p": inputs.unit, "delta_logit": "logit"}
    effects = [np.tile(delta_p(clean, other, delta=unit), len(keys)) for unit in units.values()]
    means = group_means(
        np.hstack(effects),
        np.tile(member, 2),
        seed=draws.seed,
        resamples=draws.resamples,
        entity=readings.entity,
    )
    for name, part in zip(units, np.split(np.array(means), 2, axis=1), strict=True):
        value, low, high, n = part
        frame |= {"n": n.astype(int), name: value, f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(frame)
