"""Strict mode's tables for a synthetic run folder: made-up numbers, and the claims they give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.run_folder.table_columns import (
    FINDINGS,
    FINDINGS_EFFECT,
    FINDINGS_MORE,
    STRICT,
)
from anchorscope.run_folder.view import RunView
from anchorscope.show.report.claims import claims_of

NAMES = ("graded", "two-pathways", "explained")
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
    """The run with findings, strict and claims tables; findings in turn, layers 1, 2, 3, …"""
    run = RunView.open(folder)
    rng = np.random.default_rng(0)
    names = [*STRICT, *NUMBERS.split()]
    strict, findings = [], []
    for place, dataset in enumerate(run.titles):
        for layer in range(1, int(run.model["blocks"]) + 1):
            row = dict(zip(names, rng.normal(size=len(names)).tolist(), strict=True))
            row |= {"model": run.model_name, "dataset": dataset, "layer": layer}
            strict.append(row | {"n": 50, "collapse": False})
        numbers = [*FINDINGS, *FINDINGS_MORE, *FINDINGS_EFFECT]
        row = dict(zip(numbers, rng.uniform(size=len(numbers)).round(6).tolist(), strict=True))
        row |= {"model": run.model_name, "dataset": dataset, "by": "", "untested": ""}
        row |= {"layer": place + 1, "layers": f"{place + 1} {place + 2}", "sets": 2, "n": 50}
        row |= {"why": f"reason {place}", "gap": -1.25 * place, "power_half": 0.9}
        row |= {"within": "both", "road": "shifts"}
        name = NAMES[place % len(NAMES)]
        findings.append(row | {"finding": name, "by": "kinds" if name == "explained" else ""})
    for name, rows in (("strict", strict), ("findings", findings)):
        pd.DataFrame(rows).to_csv(folder / "tables" / f"{name}.csv", index=False)
    claims_of([run]).to_csv(folder / "tables" / "claims.csv", index=False)
    return RunView.open(folder)
