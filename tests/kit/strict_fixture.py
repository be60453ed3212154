"""Strict mode's tables for a synthetic run folder: made-up numbers, and the claims they give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.run_folder.table_columns import STRICT, VERDICT
from anchorscope.run_folder.view import RunView
from anchorscope.show.report.claims_table import claims_of

FINDINGS = ("one-mechanism", "two-pathways", "class-collapse")
NUMBERS = (
    "strict_within_gap_logit strict_within_null_logit_low strict_within_null_logit_high kappa_low "
    "kappa_high kappa_next kappa_next_low kappa_next_high reliability reliability_low "
    "reliability_high reliability_control dip_p_both bic_both knockout_auroc knockout_auroc_low "
    "knockout_auroc_high refit_auroc refit_auroc_low refit_auroc_high moved_norm "
    "moved_mahalanobis adds_gain adds_gain_low adds_gain_high answer_only_paper "
    "answer_only_paper_low answer_only_paper_high answer_only_strict answer_only_strict_low "
    "answer_only_strict_high"
)


def add_strict(folder: Path) -> RunView:
    """The run with verdict, strict and claims tables; findings in turn, layers 1, 2, 3, …"""
    run = RunView.open(folder)
    rng = np.random.default_rng(0)
    names = [*STRICT, *NUMBERS.split()]
    strict, verdict = [], []
    for place, dataset in enumerate(run.titles):
        for layer in range(1, int(run.model["blocks"]) + 1):
            row = dict(zip(names, rng.normal(size=len(names)).tolist(), strict=True))
            row |= {"model": run.model_name, "dataset": dataset, "layer": layer}
            strict.append(row | {"n": 50, "collapse": False})
        row = dict.fromkeys(VERDICT, 0.5) | {"model": run.model_name, "dataset": dataset}
        row |= {"layer": place + 1, "seeds": 2, "why": f"reason {place}", "gap": -1.25 * place}
        verdict.append(row | {"finding": FINDINGS[place % len(FINDINGS)], "within": "both"})
    for name, rows in (("strict", strict), ("verdict", verdict)):
        pd.DataFrame(rows).to_csv(folder / "tables" / f"{name}.csv", index=False)
    claims_of([run]).to_csv(folder / "tables" / "claims.csv", index=False)
    return RunView.open(folder)
