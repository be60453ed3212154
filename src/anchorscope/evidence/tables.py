"""The tables of one dataset's other evidence, each piece that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.evidence.alone_table import answer_only_table, question_probe_table
from anchorscope.evidence.awareness_table import awareness_table
from anchorscope.evidence.boundary_model import boundary_model_table
from anchorscope.evidence.boundary_table import boundary_table
from anchorscope.evidence.density_table import saliency_table
from anchorscope.evidence.effect_rows import Draws
from anchorscope.evidence.flips_table import PATCHES, patching_table
from anchorscope.evidence.head_table import heads_table
from anchorscope.evidence.window_table import windows_table
from anchorscope.pathways.effects import Delta
from anchorscope.probes.probe import DEFAULT_C, Balance
from anchorscope.probes.readings import Readings

_AREAS = 300  # resamples behind each of awareness.csv's many AUROC intervals, at most


@dataclass(frozen=True, kw_only=True)
class Given:
    """What was read of one dataset, in the order of the readings' ids."""

    dataset: str
    readings: Readings  # under every intervention that was run
    states: Mapping[str, np.ndarray]  # "clean", and "question-only" where it was run
    known: np.ndarray  # [question, 2]: log10 popularity (NaN: unknown), length
    abstained: Readings | None = None  # of questions without a class
    saliency: pd.DataFrame | None = None  # rows of evidence/saliency
    heads: pd.DataFrame | None = None  # rows of evidence/heads


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The run's choices that the tables depend on."""

    model: str
    grouping: str = "per-layer"
    layers: str = "cumulative"  # of the run's own knockout
    unit: Delta = "points"
    C: float = DEFAULT_C
    balance: Balance = "weights"
    seed: int = 0
    resamples: int = 1000

    @property
    def draws(self) -> Draws:
        return Draws(seed=self.seed, resamples=self.resamples, unit=self.unit)


def evidence_tables(
    asked: Sequence[str], given: Given, settings: Settings
) -> dict[str, pd.DataFrame]:
    """Table name -> table, of the pieces asked for whose readings are there.

    Pieces: patching, answer-only, saliency, boundary, awareness, heads, windows. How datasets
    agree on heads needs them all: see `heads_agreement`.
    """
    made: dict[str, pd.DataFrame] = {}
    there = given.readings.logits
    of = {"model": settings.model, "dataset": given.dataset, "grouping": settings.grouping}
    if "patching" in asked and not there.keys().isdisjoint(PATCHES):
        made["patching"] = patching_table(given.readings, **of)
    if "answer-only" in asked and "answer-only" in there:
        made["answer_only"] = answer_only_table(given.readings, **of, draws=settings.draws)
    if "windows" in asked:
        made["windows"] = windows_table(
            given.readings, **of, layers=settings.layers, draws=settings.draws
        )
    if "boundary" in asked:
        made |= _boundary(given, settings)
    made |= _learnt(asked, given, settings)
    return made | _from_rows(asked, given, settings)


def _boundary(given: Given, settings: Settings) -> dict[str, pd.DataFrame]:
    of = {"model": settings.model, "dataset": given.dataset, "grouping": settings.grouping}
    return {
        "boundary": boundary_table(
            given.readings,
            popularity=given.known[:, 0],
            abstained=given.abstained,
            seed=settings.seed,
            resamples=settings.resamples,
            **of,
        ),
        "boundary_model": boundary_model_table(given.readings, known=given.known, **of),
    }


def _learnt(asked: Sequence[str], given: Given, settings: Settings) -> dict[str, pd.DataFrame]:
    """The tables for which classifiers are trained."""
    made, s = {}, settings
    if "awareness" in asked:
        made["awareness"] = awareness_table(
            given.readings,
            {name: of for name, of in given.states.items() if name in ("clean", "question-only")},
            known=given.known,
            model=s.model,
            dataset=given.dataset,
            C=s.C,
            grouping=s.grouping,
            seed=s.seed,
            resamples=min(s.resamples, _AREAS),
        )
    if "answer-only" in asked and "question-only" in given.states:
        made["question_probe"] = question_probe_table(
            given.states["question-only"],
            z=given.readings.z,
            fold=given.readings.fold,
            model=s.model,
            dataset=given.dataset,
            C=s.C,
            balance=s.balance,
            seed=s.seed,
            resamples=s.resamples,
        )
    return made


def _from_rows(asked: Sequence[str], given: Given, settings: Settings) -> dict[str, pd.DataFrame]:
    """The tables of what was read sample by sample."""
    made = {}
    drawn = {"seed": settings.seed, "resamples": settings.resamples}
    if "saliency" in asked and given.saliency is not None:
        z = dict(zip(given.readings.ids, given.readings.z.tolist(), strict=True))
        made["saliency"] = saliency_table(given.saliency, z, model=settings.model, **drawn)
    if "heads" in asked and given.heads is not None:
        made["heads"] = heads_table(given.heads, model=settings.model, unit=settings.unit, **drawn)
    return made
