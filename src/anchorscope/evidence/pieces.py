"""What a piece of evidence is: the passes it adds, what it reads of the model, its tables.

A piece is a module of this folder with a value `PIECE`, found by the name that `--evidence` has
for it. The names, and the columns of the tables, stand in `run_folder.table_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorscope.config import Config, Delta, unit_of
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import passes_of
from anchorscope.parallel import in_parallel
from anchorscope.probes.labelled import Covariates
from anchorscope.probes.readings import Readings
from anchorscope.records import Shot
from anchorscope.run_folder.states import StoredStates
from anchorscope.stats.intervals import Draws

if TYPE_CHECKING:  # tables are made in processes that need no model, and should not wait for torch
    from anchorscope.evidence.shards import HeldOut, Shards
    from anchorscope.models import Model

Tables = dict[str, pd.DataFrame]  # by name, as under tables/
Part = Callable[[], Tables]


@dataclass(frozen=True, kw_only=True)
class PromptMaker:
    """How a run put its questions, for a piece that must put one the same way."""

    model: Model
    style: str
    shots: Mapping[str, Sequence[Shot]]  # by dataset, as many as the run gave
    seed: int

    def prompt(self, text: str, *, dataset: str) -> tuple[int, ...]:
        """The tokens of a question, asked as the questions of that dataset were."""
        from anchorscope.models.prompts import make_prompt

        return make_prompt(self.model, text, shots=self.shots[dataset], style=self.style).ids


@dataclass(frozen=True, kw_only=True)
class PieceInputs:
    """One dataset of a run as the tables of evidence see it, in the order of the readings' ids."""

    model: str
    dataset: str
    config: Config
    readings: Readings  # under every intervention that was run
    covariates: Covariates
    # Of the passes a piece `loads`, [question, layer, width]; of a run, read a layer at a time.
    states: Mapping[str, np.ndarray | StoredStates] = field(default_factory=dict)
    abstained: Readings | None = None  # of questions without a class
    rows: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # of evidence/<name>, by name

    @property
    def names(self) -> dict[str, Any]:
        """What begins every row, and how samples are grouped."""
        grouping = self.config.grouping
        return {"model": self.model, "dataset": self.dataset, "grouping": grouping}

    @property
    def layers(self) -> range:
        """The layers k, from 1."""
        return self.readings.layer_numbers

    @property
    def draws(self) -> Draws:
        return Draws(seed=self.config.seed, resamples=self.config.resamples)

    @property
    def unit(self) -> Delta:
        return unit_of(self.config.delta)


def _no_passes(config: Config) -> tuple[Intervention, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of evidence."""

    tables: Callable[[PieceInputs], Tables] | None = None  # of one dataset
    # The same in parts that any process can compute; the rows of a table in the parts' order.
    parts: Callable[[PieceInputs], Sequence[Part]] | None = None
    across: Callable[[Tables, Config], Tables] | None = None  # of all datasets together
    passes: Callable[[Config], tuple[Intervention, ...]] = _no_passes  # beside every run's
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
    """The pieces a run is asked for."""
    return [piece_of(name) for name in config.evidence]


def passes_of_pieces(config: Config) -> tuple[Intervention, ...]:
    """The passes that the evidence asked for adds to those of every run."""
    return tuple(cut for piece in pieces_of(config) for cut in piece.passes(config))


def probed_of(config: Config) -> tuple[str, ...]:
    """The passes whose states the probes read: every run's own, and those of its evidence."""
    pieces = pieces_of(config)
    own = (*passes_of(config), *passes_of_pieces(config))
    read = [cut.name for cut in own if cut.boost is None]
    return (*read, *(name for piece in pieces for name in piece.probed))


def evidence_tables(names: Sequence[str], inputs: PieceInputs) -> Tables:
    """The tables of the pieces with these names, of one dataset; parts each in a process."""
    pieces = [piece_of(name) for name in names]
    parts = [part for piece in pieces if piece.parts for part in piece.parts(inputs)]
    made = in_parallel(lambda part: part(), parts) if parts else []
    frames: dict[str, list[pd.DataFrame]] = {}
    for tables in (*made, *(piece.tables(inputs) for piece in pieces if piece.tables)):
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
