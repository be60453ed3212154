"""output.csv: the change of the answer's own probability under every pass.

It separates the model from its probe: where the knockout flips the probe and leaves the
probability of the answer alone, the change is in the probe's belief only.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from anchorscope.engine.interventions import CLEAN, KNOCKOUT, RETEST, RETEST_KNOCKOUT
from anchorscope.evidence.pieces import GROUPS
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.view import values
from anchorscope.stats.intervals import Draws, bootstrap_mean, rate

PREDICTED = {"all": (0, 1), "right": (0,), "wrong": (1,)}
VERDICTS = {"right": 0, "wrong": 1}  # z
_BEFORE = {RETEST_KNOCKOUT.name: RETEST.name}  # what a pass is compared with; else the clean one


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
