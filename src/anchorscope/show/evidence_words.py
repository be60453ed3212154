"""What each piece of the other evidence says, in sentences written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.pathways.claims.settled import settled_layer
from anchorscope.records import Estimate
from anchorscope.show.density import single_heads
from anchorscope.show.evidence_views import PATCHES, main_patch
from anchorscope.show.load import RunView, records, values, where
from anchorscope.show.words import interval, number, percent

BEYOND = {
    "holds": "It stands within a predicted class, with groups from another probe",
    "fails": "Within a predicted class, with groups from another probe, it fails",
    "undecided": "Within a predicted class, with groups from another probe, it is not decided",
    "not measured": "Within a predicted class it could not be measured",
}
Row = Mapping[str, Any]


def chosen_layer(run: RunView, dataset: str) -> int:
    """The layer whose clean probe is best, where all evidence is read."""
    return int(records(where(run.verdict, dataset=dataset))[0]["layer"])


def claim_of(run: RunView, claim: str, dataset: str) -> Row | None:
    """The row of claims.csv; None where the run has no such claim."""
    found = records(where(run.claims, claim=claim, dataset=dataset))
    return found[0] if found else None


def verdict(row: Row | None, what: str = "Q less A") -> str:
    """What strict mode makes of a claim, its number named; nothing for a run without it."""
    if row is None:
        return ""
    found = Estimate(*(float(row.get(f"strict_{n}", math.nan)) for n in ("value", "low", "high")),
                     n=0)  # fmt: skip
    said = BEYOND[str(row["strict_verdict"])]
    if not math.isfinite(found.value):
        return f"{said}."
    ends = interval(found, 2)
    return f"{said}: {what} {number(found.value, 2)}{f' ({ends})' if ends else ''}."


def patching(run: RunView, dataset: str) -> list[str]:
    """Flips under a patch, by pathway, beside its control."""
    table, layer = run.evidence["patching"], chosen_layer(run, dataset)
    rows = where(table, dataset=dataset, layer=layer, mode="paper", subset="all")
    patch = main_patch(table)
    q, a = (_share(rows, intervention=patch, pathway=p) for p in ("Q", "A"))
    said = [
        f"At layer {layer}, replacing the exact question tokens by the {PATCHES[patch]} flips the "
        f"probe’s verdict on {q} of the Q samples and {a} of the A samples (paper mode)."
    ]
    if "patch-other" in set(values(rows, "intervention")):
        said.append(
            "Replacing as many other tokens of the question flips "
            f"{_share(rows, intervention='patch-other', pathway='all')} of all."
        )
    return [*said, verdict(claim_of(run, "patching-flips-q", dataset)), *_donors(run, dataset)]


def _donors(run: RunView, dataset: str) -> list[str]:
    """How many matched donors made the prompt longer or shorter, and share the relation."""
    ids = set(values(where(run.samples, dataset=dataset), "id"))
    own = [row for row in records(where(run.donors, kind="matched")) if row["id"] in ids]
    if not own:
        return []
    longer, alike = (sum(bool(row[name]) for row in own) for name in ("resized", "same_relation"))
    return [
        f"Of {len(own)} matched donors {alike} share the relation, and {longer} have another "
        "number of tokens."
    ]


def answer_only(run: RunView, dataset: str) -> list[str]:
    """ΔP without the question, and what the question alone foretells."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["answer_only"], dataset=dataset, layer=layer, subset="all")
    q, a = (_value(where(rows, mode="paper", pathway=p), "delta_p") for p in ("Q", "A"))
    said = [
        f"At layer {layer}, an answer read without its question changes the probe’s belief in its "
        f"first verdict by {number(q)} {run.unit} for Q and {number(a)} for A (paper mode).",
        verdict(claim_of(run, "answer-only-moves-q", dataset)),
    ]
    probe = where(run.evidence.get("question_probe", pd.DataFrame({"dataset": []})),
                  dataset=dataset)  # fmt: skip
    if len(probe) and values(probe, "auroc").notna().any():
        best = max(records(probe), key=lambda row: np.nan_to_num(row["auroc"], nan=-1.0))
        said.append(
            "A probe that sees only the question, before any answer, reaches AUROC "
            f"{number(float(best['auroc']), 2)} at its best layer ({int(best['layer'])}): what "
            "it reaches needs no answer at all."
        )
    return said


def boundary(run: RunView, dataset: str) -> list[str]:
    """What Q knows more than A, and whether the pathway adds to simpler things."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["boundary"], dataset=dataset, layer=layer, mode="paper", subset="all")
    parts = []
    for name, verb in (("accuracy", "answered right"), ("abstention", "abstained from")):
        found = where(rows, measure=name)
        if len(found):
            q, a = (percent(_value(where(found, pathway=p), "value")) for p in ("Q", "A"))
            parts.append(f"{q} of Q are {verb}, and {a} of A")
    said = [f"At layer {layer}, in paper mode, {'; '.join(parts)}."] if parts else []
    said.append(verdict(claim_of(run, "q-knows", dataset)))
    model = run.evidence.get("boundary_model")
    if model is not None:
        said.append(_model(where(model, dataset=dataset, layer=layer, mode="strict",
                                 term="pathway")))  # fmt: skip
    return said


def _model(rows: pd.DataFrame) -> str:
    found = records(rows)
    if not found or not math.isfinite(float(found[0]["coefficient"])):
        return "A model with logit, margin, popularity and length could not be fitted."
    row = found[0]
    ends = Estimate(float(row["coefficient"]), float(row["low"]), float(row["high"]), int(row["n"]))
    adds = "nothing that can be told from 0" if ends.low <= 0 <= ends.high else "something"
    return (
        "Beside the signed logit, its size, popularity and length, the strict pathway adds "
        f"{adds} to the odds of being right (coefficient per spread {number(ends.value, 2)}, "
        f"{interval(ends, 2)})."
    )


def awareness(run: RunView, dataset: str) -> list[str]:
    """How well the state knows its pathway, from which layer on, and beyond what."""
    layer = chosen_layer(run, dataset)
    table = where(run.evidence["awareness"], dataset=dataset)
    paper = where(table, mode="paper", subset="all")
    state = where(paper, predictor="state").sort_values("layer")
    at = _value(where(state, layer=layer), "auroc")
    logit = _value(where(paper, layer=layer, predictor="signed-logit"), "auroc")
    said = [
        f"At layer {layer}, a classifier of the clean state tells Q from A with AUROC "
        f"{number(at, 2)}; the signed logit alone reaches {number(logit, 2)} (paper mode)."
    ]
    settled = settled_layer(values(state, "auroc").to_numpy(dtype=float))
    if settled is not None and (values(state, "low") > 0.5).any():
        said.append(f"It is settled from layer {settled} on (within 0.02 of its best).")
    said.append(verdict(claim_of(run, "state-knows-pathway", dataset), "AUROC"))
    return said


def saliency(run: RunView, dataset: str) -> list[str]:
    """One hump or two in the summed saliency."""
    table = where(run.evidence["saliency"], dataset=dataset)
    summed = cast(pd.DataFrame, table.loc[values(table, "layer").isna()])
    said = []
    for row in records(where(summed, subset="all")):
        p, bic = float(row["dip_p"]), float(row["bic"])
        what = f"With the {row['loss']} loss, from the {row['source']} tokens,"
        if not math.isfinite(p):
            said.append(f"{what} there are too few samples to judge the shape.")
            continue
        humps = "two humps are shown" if p <= 0.05 and bic > 0 else "two humps are not shown"
        said.append(
            f"{what} {humps} in {int(row['n'])} samples (dip test p {number(p, 3)}; BIC of one "
            f"component less that of two {number(bic)})."
        )
    return said


def heads(run: RunView, dataset: str) -> list[str]:
    """The strongest single head, what the heads of a block do together, and other datasets."""
    table = where(run.evidence["heads"], dataset=dataset)
    known = [row for row in records(single_heads(table)) if math.isfinite(float(row["delta_p"]))]
    if not known:
        return ["No single head was tried."]
    top = min(known, key=lambda row: float(row["delta_p"]))
    ends = Estimate(*(float(top[n]) for n in ("delta_p", "low", "high")), n=int(top["n"]))
    said = [
        f"Of {len(known)} single heads, head {int(top['head'])} of block {int(top['block'])} "
        f"lowers the probe’s belief most: ΔP {number(ends.value, 2)} ({interval(ends, 2)}); being "
        "the lowest of many, its size is flattered."
    ]
    for row in records(run.evidence.get("heads_agreement", pd.DataFrame())):
        if dataset == row["dataset_a"]:
            ends = Estimate(*(float(row[n]) for n in ("spearman", "low", "high")), n=int(row["n"]))
            other = run.titles.get(str(row["dataset_b"]), str(row["dataset_b"]))
            said.append(
                f"The order of heads agrees with {other} to a rank correlation of "
                f"{number(ends.value, 2)} ({interval(ends, 2)})."
            )
    return said


def windows(run: RunView, dataset: str) -> list[str]:
    """How much of the effect a few blocks, or one alone, can do."""
    layer = chosen_layer(run, dataset)
    rows = where(run.evidence["windows"], dataset=dataset, layer=layer, mode="strict", pathway="Q")
    each = [f"{row['layers']} {number(float(row['delta_p']))}" for row in records(rows)]
    return [f"ΔP of Q at layer {layer} in strict mode, by the blocks cut: {'; '.join(each)}."]


WORDS: Mapping[str, Callable[[RunView, str], list[str]]] = {
    "patching": patching,
    "answer_only": answer_only,
    "boundary": boundary,
    "awareness": awareness,
    "saliency": saliency,
    "heads": heads,
    "windows": windows,
}


def _share(rows: pd.DataFrame, **equal: object) -> str:
    return percent(_value(where(rows, **equal), "flip_rate"))


def _value(rows: pd.DataFrame, column: str) -> float:
    """The first row's number; NaN where there is no row."""
    found = records(rows)
    return float(found[0][column]) if found else math.nan
