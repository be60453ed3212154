"""The claims of runs on disk, and strict mode's findings and evidence as tables of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from anchorscope.claims.inputs import ClaimInputs, from_tables
from anchorscope.claims.table import claims_table
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.words import number, percent

FINDINGS = {
    "two-pathways": "Two pathways",
    "one-mechanism": "One mechanism",
    "shift": "One shift of everybody",
    "class-collapse": "Class collapse: the pathway is the predicted class under another name",
    "continuum": "A continuum: samples depend on the question by degree",
    "no-effect": "No effect beyond that of random tokens",
    "undecided": "Undecided",
}


def claims_of(runs: Sequence[RunView]) -> pd.DataFrame:
    """The claims table of one run or several."""
    return claims_table([claim_inputs(run) for run in runs])


def claim_inputs(run: RunView) -> ClaimInputs:
    """A run folder as the claims see it."""
    tables = {"pathways": run.pathways, "strict": run.strict, "verdict": run.verdict}
    return from_tables(run.info, tables | run.evidence, run.samples)


def findings(run: RunView) -> Safe:
    """One sentence per dataset: what it is, and why."""
    said = []
    for row in records(run.verdict):
        title = run.titles.get(str(row["dataset"]), str(row["dataset"]))
        found = FINDINGS.get(str(row["finding"]), str(row["finding"]))
        why = f" ({row['why']}). Layer {row['layer']}, {row['seeds']} sets of folds."
        said.append(tag("li", tag("b", f"{title}: {found}"), why))
    how = (
        "Read at the layer whose clean probe is best, which is chosen without a look at any "
        "knocked-out state. Two pathways are found only where the gap is beyond what one mechanism "
        "gives within a predicted class, probes that share no training question agree on the "
        "groups, and the shifts have two humps."
    )
    return join([tag("ul", *said), tag("p", how, class_="quiet")])


def claims(run: RunView) -> Safe:
    """Every claim with its number and verdict in both modes."""
    rows = [
        [
            ", ".join(run.titles.get(name, name) for name in str(row["dataset"]).split(",")),
            str(row["statement"]),
            str(row["source"]),
            *(_cell(row, mode) for mode in ("paper", "strict")),
        ]
        for row in records(run.claims)
    ]
    columns = ["Dataset", "Claim", "Source", "Paper mode", "Strict mode"]
    said = (
        "A claim is undecided where its interval allows both; p-values are corrected for the "
        "number of claims (Holm), but for the first one, which is the question of the run."
    )
    return join([table(columns, rows, text_columns=3), tag("p", said, class_="quiet")])


def evidence_table(run: RunView) -> Safe:
    """Strict mode's numbers at the chosen layer of each dataset."""
    rows = []
    for verdict in records(run.verdict):
        dataset = str(verdict["dataset"])
        (row,) = records(where(run.strict, dataset=dataset, layer=verdict["layer"]))
        rows += [[run.titles.get(dataset, dataset), name, said] for name, said in _numbers(row)]
    return table(["Dataset", "At the chosen layer", ""], rows, text_columns=2)


def _numbers(row: dict[str, Any]) -> list[tuple[str, str]]:
    def of(name: str, digits: int = 2) -> str:
        return number(float(row[name]), digits)

    def ends(name: str, digits: int = 2) -> str:
        return f"{of(name, digits)} ({of(name + '_low', digits)} to {of(name + '_high', digits)})"

    def band(name: str) -> str:
        null = name.replace("gap", "null")
        return f"{of(name)} (one mechanism: {of(null + '_low')} to {of(null + '_high')})"

    share = float(row["group_explained"])
    return [
        ("Gap of Q and A, ΔP", band("strict_gap")),
        ("The same within predicted classes, logits", band("strict_within_gap_logit")),
        ("Agreement of independent probes on the groups (κ)", ends("kappa")),
        ("Agreement with the next layer (κ)", ends("kappa_next")),
        ("Share of the grouping that the predicted class explains", percent(share)),
        ("Agreement on how far each sample moves (correlation)", ends("reliability")),
        ("The same under random tokens", of("reliability_control")),
        ("Two humps within predicted classes: dip test, p", of("dip_p_both", 3)),
        ("Two components against one: BIC, above 0 for two", of("bic_both", 1)),
        ("AUROC of the clean probe on knocked-out states", ends("knockout_auroc")),
        ("AUROC of a probe trained on knocked-out states", ends("refit_auroc")),
        ("How far states moved: ‖x′ − x‖ / ‖x‖", of("moved_norm")),
        ("How far from clean states (Mahalanobis, clean = 1)", of("moved_mahalanobis")),
        ("What the group adds in predicting errors, nats a question", ends("adds_gain", 4)),
    ]


def _cell(row: dict[str, Any], mode: str) -> Safe:
    value, verdict = float(row[f"{mode}_value"]), str(row[f"{mode}_verdict"])
    shown = number(value, 2) if math.isfinite(value) else ""
    return join([tag("b", verdict), f" {shown}"])
