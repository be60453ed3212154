"""The finding under other choices: what the run would have said, had it been made otherwise.

Every row of robust.csv is a finding from its start: folds, probes of all layers, the layer whose
clean probe reads best, all sets of folds. Here are the choices that read stored states again;
those that need the model are in robust_asked.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, median_low
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.engine.passes import KNOCKOUT
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import Tables
from anchorscope.parallel import in_parallel
from anchorscope.pathways.effects import delta_p, flips
from anchorscope.pathways.parts import READ, asked_of, cross_fit_answers, whole_finding
from anchorscope.pipeline.stages import Run
from anchorscope.probes.labelled import Labelled, labelled
from anchorscope.probes.readings import Readings
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.store import Store

TABLE = "tables/robust.csv"
AS_RUN = "as run"
FOLDS = (3, 5, 10)  # of these the ones that the run does not have
FLIPPED = (2, 5, 10)  # percent of the verdicts
DRAWS = 3  # of which verdicts are flipped; a row is their median
_MIDDLE = ("paper_gap", "same_gap", "strict_gap", "gap_low", "gap_high")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to come to a finding: from which samples and states, with which config."""

    variant: str  # as the table writes it
    dataset: str
    config: Config
    samples: Sequence[Sample]  # of the dataset
    folder: Path  # whose states
    knockout: str = KNOCKOUT.name  # the pass that is read as the knockout


def robust_tables(
    run: Run, samples: Sequence[Sample], asked: Sequence[Choice] = (), *, datasets: Sequence[str]
) -> Tables:
    """robust.csv: for each dataset the run itself, choices that read again, and those asked."""
    with run.stage("robust"):
        choices = []
        for dataset in datasets:
            own = [sample for sample in samples if sample.question.dataset == dataset]
            as_run = Choice(
                variant=AS_RUN,
                dataset=dataset,
                config=run.config,
                samples=own,
                folder=run.store.path,
            )
            choices += [*read_again(as_run), *(c for c in asked if c.dataset == dataset)]
        run.progress.start("other choices", len(choices))
        rows = in_parallel(row_of, choices, progress=lambda done, total: run.progress.advance())
        return {"robust": table_of(rows)}


def write_robust(store: Store, tables: Tables) -> None:
    """Writes robust.csv alone."""
    store.write(TABLE, partial(tables["robust"].to_csv, index=False))


def read_again(as_run: Choice) -> list[Choice]:
    """The run as it is, and every choice that needs nothing but its stored states."""
    config, samples = as_run.config, as_run.samples
    configs: dict[str, Config] = {}
    for C in (config.C / 4, config.C * 4):
        configs[f"C={C:g}"] = replace(config, C=C)
    for folds in FOLDS:
        if folds != config.folds:
            configs[f"folds={folds}"] = replace(config, folds=folds)
    # The run's own sets of folds have the seeds before this one.
    other = config.seed + config.fold_seeds
    configs[f"fold-seed={other}"] = replace(config, seed=other)
    choices = [replace(as_run, variant=name, config=of) for name, of in configs.items()]
    for percent in FLIPPED:
        for draw in range(DRAWS):
            flipped = flip_verdicts(samples, percent, seed=(config.seed, percent, draw))
            choices.append(replace(as_run, variant=f"flipped={percent}%", samples=flipped))
    half = half_of_entities(samples, seed=config.seed)
    return [as_run, *choices, replace(as_run, variant="half", samples=half)]


def flip_verdicts(
    samples: Sequence[Sample], percent: int, *, seed: tuple[int, ...]
) -> list[Sample]:
    """The samples with this share of the usable verdicts turned round, drawn at random."""
    usable = [number for number, sample in enumerate(samples) if sample.usable]
    rng = np.random.default_rng(seed)
    drawn = rng.choice(usable, size=round(len(usable) * percent / 100), replace=False)
    flipped = list(samples)
    for number in drawn:
        verdict = "right" if samples[number].verdict == "wrong" else "wrong"
        flipped[number] = replace(samples[number], verdict=verdict)
    return flipped


def half_of_entities(samples: Sequence[Sample], *, seed: int) -> list[Sample]:
    """The samples about one half of the entities, drawn at random."""
    entities = sorted({sample.question.entity for sample in samples})
    rng = np.random.default_rng(seed)
    kept = {entities[n] for n in rng.permutation(len(entities))[: len(entities) // 2]}
    return [sample for sample in samples if sample.question.entity in kept]


def row_of(choice: Choice) -> Row:
    """The finding of a choice; `too-few` where the answers do not do for its probes."""
    start: Row = {"variant": choice.variant, "dataset": choice.dataset}
    try:
        return start | _finding(choice)
    except UserError:
        usable = sum(sample.usable for sample in choice.samples)
        return start | {"n": usable, "finding": "too-few"}


def _finding(choice: Choice) -> Row:
    config = choice.config
    answers = labelled(choice.samples, choice.dataset, config)
    bank = StateBank(choice.folder, list(answers.ids)).renamed({KNOCKOUT.name: choice.knockout})
    own = choice.knockout == KNOCKOUT.name
    # The retest was read with the run's own knockout.
    names = [n for n in READ if n in bank.names and (own or not n.startswith("retest"))]
    readings = _readings(bank, names, answers, config)
    asked = asked_of(model="", config=config, answers=answers, readings=readings, bank=bank)
    finding = whole_finding(asked)
    clean, cut = (readings.at(asked.layer, "paper", name) for name in ("clean", "knockout"))
    effect, flipped = delta_p(clean, cut), flips(clean, cut) == 1
    return {
        "layer": asked.layer,
        "n": finding.examined.n,
        "paper_gap": _mean(effect[flipped]) - _mean(effect[~flipped]),
        "same_gap": finding.same_gap,
        "strict_gap": finding.gap.value,
        "gap_low": finding.gap.low,
        "gap_high": finding.gap.high,
        "finding": finding.name,
    }


def _mean(values: np.ndarray) -> float:
    """The mean of the known values; NaN where there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def _readings(bank: StateBank, names: Sequence[str], answers: Labelled, config: Config) -> Readings:
    """The readings of all layers, one in memory at a time."""
    layers = []
    for layer in range(1, bank.layers + 1):
        states = {name: bank.layer(name, layer)[:, None] for name in names}
        found, _ = cross_fit_answers(states, answers, config)
        layers.append(found)
    logits = {name: np.concatenate([of.logits[name] for of in layers], axis=2) for name in names}
    return replace(layers[0], logits=logits)


def table_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The table: draws of one choice as one row, and whether it agrees with the run's own."""
    drawn: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        drawn.setdefault((row["dataset"], row["variant"]), []).append(row)
    merged = [_median(of) for of in drawn.values()]
    own = {row["dataset"]: row["finding"] for row in merged if row["variant"] == AS_RUN}
    table = [row | {"agrees": row["finding"] == own[row["dataset"]]} for row in merged]
    frame = pd.DataFrame(table, columns=list(table_columns.ROBUST))
    return frame.astype({"layer": "Int64", "n": "Int64"})


def _median(rows: Sequence[Row]) -> Row:
    """Medians of the numbers, and the finding of most draws (the first of equals)."""
    (finding, _), *_ = Counter(row["finding"] for row in rows).most_common()
    numbers = {name: _known(rows, name) for name in ("layer", "n", *_MIDDLE)}
    middle = {name: median(of) for name, of in numbers.items() if of and name in _MIDDLE}
    whole = {name: median_low(of) for name, of in numbers.items() if of and name not in _MIDDLE}
    names = {name: rows[0][name] for name in ("variant", "dataset")}
    return {**names, **whole, **middle, "finding": finding}


def _known(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a number in the rows that have it."""
    return [row[name] for row in rows if name in row and np.isfinite(row[name])]
