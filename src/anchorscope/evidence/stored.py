"""Load a dataset's evidence from a run folder, and tabulate the model's own output.

output.csv is the change of the answer's own probability under every pass. It separates the model
from its probe: where the knockout flips the probe and leaves the probability of the answer alone,
the change is in the probe's belief only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anchorscope.config import Config
from anchorscope.engine.interventions import CLEAN, KNOCKOUT, RETEST, RETEST_KNOCKOUT, passes_of
from anchorscope.evidence.pieces import GROUPS, PieceInputs, Tables, pieces_of
from anchorscope.probes.folds import Labelled
from anchorscope.probes.probe_set import ProbeSet, Readings, read_abstained
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.samples import evidence_name, load_outputs, stored_rows
from anchorscope.run_folder.states import StateBank, StoredStates
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import values
from anchorscope.stats.intervals import Draws, bootstrap_mean, rate

PREDICTED = {"all": (0, 1), "right": (0,), "wrong": (1,)}
VERDICTS = {"right": 0, "wrong": 1}  # z
_BEFORE = {RETEST_KNOCKOUT.name: RETEST.name}  # what a pass is compared with; else the clean one


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The samples of one dataset, and the labelled answers that probes learn from."""

    samples: Sequence[Sample]
    answers: Labelled
    shards: int  # of the run; the dataset's states are in some of them

    @property
    def name(self) -> str:
        return self.answers.dataset


def stored_inputs(
    store: Store, config: Config, dataset: Dataset, readings: Readings, *, model: str
) -> PieceInputs:
    """Load the inputs of the evidence tables of one dataset."""
    pieces, answers = pieces_of(config), dataset.answers
    bank = StateBank(store.path, list(answers.ids))
    states = sorted({name for piece in pieces for name in piece.loads if name in bank.names})
    shards = range(dataset.shards)
    rows = {
        name: stored_rows(store, name, dataset.name, shards)
        for piece in pieces
        for name in piece.rows
        if all(store.has(evidence_name(name, number)) for number in shards)
    }
    abstained = any(piece.needs_abstained for piece in pieces)
    return PieceInputs(
        model=model,
        dataset=dataset.name,
        config=config,
        readings=readings,
        covariates=answers.covariates,
        states={name: StoredStates(bank, name) for name in states},
        abstained=_read_abstained(store, dataset) if abstained else None,
        rows=rows,
    )


def _read_abstained(store: Store, dataset: Dataset) -> Readings | None:
    """The probes' readings of abstentions; None where there are none."""
    own = [s for s in dataset.samples if s.verdict == "abstain"]
    own = [s for s in own if s.exact_answer and s.exact_question]
    ids = [s.id for s in own]
    if not ids:
        return None
    names = (CLEAN.name, KNOCKOUT.name)
    bank = StateBank(store.path, ids)
    states = {name: bank.all_layers(name) for name in names}
    entity = np.array([s.question.entity for s in own])
    probes = ProbeSet.load(store.file(f"probes/{dataset.name}"))
    return read_abstained(probes, states, ids=ids, entity=entity)


# --- The model's own output under each pass ---


def stored_output_tables(
    store: Store, config: Config, dataset: Dataset, tables: Tables, *, model: str
) -> Tables:
    """Tabulate the model's own output under every pass, by strict mode's pathways.

    Empty where the run has no outputs: states that were extracted elsewhere come without them.
    """
    passes = [cut.name for cut in passes_of(config) if cut.has_output]
    outputs = load_outputs(store, dataset.samples, passes, shards=dataset.shards)
    if set(outputs["pass"]) <= {CLEAN.name}:
        return {}
    layer = int(tables["findings"]["layer"].iloc[0])
    rows = tables["pathways"]
    groups = rows.loc[(rows["mode"] == "strict") & (rows["layer"] == layer)]
    entity = dict(zip(dataset.answers.ids, dataset.answers.entities, strict=True))
    groups = groups.assign(entity=groups["id"].map(entity))
    names = {"model": model, "dataset": dataset.name}
    draws = Draws(seed=config.seed, resamples=config.resamples)
    return {
        "output": output_table(outputs, groups, **names, layer=layer, draws=draws),
        "associated": associated_table(outputs, groups, **names),
    }


def output_table(
    outputs: pd.DataFrame,
    groups: pd.DataFrame,
    *,
    model: str,
    dataset: str,
    layer: int,
    draws: Draws | None = None,
) -> pd.DataFrame:
    """One row per pass, pathway and predicted class: table_columns.OUTPUT.

    `outputs` are rows of `load_outputs`. `groups` has one row per sample: id, pathway ("Q", "A" or
    None), prediction (1 = wrong) and entity, at the finding's layer. Δ log P is in nats, of all
    answer tokens up to the probe position (their mean) and of the first alone, with an interval
    for which entities are drawn; `rank` is the median rank of the first token. A sample without an
    output under a pass is not counted there; an empty group has n = 0 and NaN.
    """
    draws, by_pass = draws or Draws(), _by_pass(outputs, groups)
    rows = []
    for name, under in by_pass.items():
        if name == CLEAN.name:
            continue
        before = by_pass[_BEFORE.get(name, CLEAN.name)]
        both = under.join(before.add_suffix("_before"), how="inner").join(groups.set_index("id"))
        for (predicted, classes), pathway in itertools.product(PREDICTED.items(), GROUPS):
            own = both.loc[both["prediction"].isin(classes) & _of_pathway(both, pathway)]
            entity = own["entity"].to_numpy(dtype=str)
            mean, first = (
                bootstrap_mean(
                    (own[column] - own[f"{column}_before"]).to_numpy(),
                    seed=draws.seed,
                    resamples=draws.resamples,
                    entity=entity,
                )
                for column in ("log_p", "log_p_first")
            )
            rank = float(own["rank"].median()) if len(own) else np.nan
            rows.append((model, dataset, name, pathway, *mean[:3], rank, mean.n,
                         predicted, first.value, layer))  # fmt: skip
    return pd.DataFrame(rows, columns=list(table_columns.OUTPUT))


def associated_table(
    outputs: pd.DataFrame, groups: pd.DataFrame, *, model: str, dataset: str
) -> pd.DataFrame:
    """One row per verdict and pathway: the share of answers that depend on the subject.

    An answer is associated where the knockout takes its first token from the first rank: without
    subject and property the model would have said something else. Of wrong answers these are the
    associated hallucinations (arXiv 2510.09033). `groups` has z beside the columns above.
    """
    by_pass = _by_pass(outputs, groups)
    if KNOCKOUT.name not in by_pass:  # no question has a key that the run's knockout cuts
        return pd.DataFrame(columns=list(table_columns.ASSOCIATED))
    both = by_pass[KNOCKOUT.name].join(groups.set_index("id"))
    rows = []
    for verdict, pathway in itertools.product(VERDICTS, GROUPS):
        own = both.loc[(both["z"] == VERDICTS[verdict]) & _of_pathway(both, pathway)]
        lost = (own["rank"] > 1).to_numpy(dtype=float)
        share = rate(lost, entity=own["entity"].to_numpy(dtype=str))
        rows.append((model, dataset, verdict, pathway, share.n, *share[:3]))
    return pd.DataFrame(rows, columns=list(table_columns.ASSOCIATED))


def _by_pass(outputs: pd.DataFrame, groups: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The outputs of the samples in the groups, by pass, with their ids as the index."""
    own = outputs.loc[outputs["id"].isin(groups["id"])]
    parts = own.groupby("pass", sort=False)
    return {str(name): rows.set_index("id").drop(columns="pass") for name, rows in parts}


def _of_pathway(rows: pd.DataFrame, pathway: str) -> pd.Series:
    own = values(rows, "pathway")
    return own.notna() if pathway == "all" else own == pathway
