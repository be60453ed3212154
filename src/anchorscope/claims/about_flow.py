"""Claims about the flow from question to answer: saliency, heads, the knockout in few blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pandas as pd

from anchorscope.claims.about_evidence import row_of
from anchorscope.claims.decision import Claim, Measured, Region, from_estimate
from anchorscope.claims.inputs import ClaimInputs
from anchorscope.records import Estimate
from anchorscope.stats.intervals import difference

TOP = "top4"
_ENDS = ("delta_p", "delta_p_low", "delta_p_high")


def flow_claims(run: ClaimInputs) -> Iterator[Claim]:
    """The claims that saliency, heads and windows can speak to, where they were read."""
    claims: tuple[Callable[[ClaimInputs, str], Claim | None], ...] = (_saliency, _heads, _windows)
    for claim in claims:
        for dataset in run.titles:
            found = claim(run, dataset)
            if found is not None:
                yield found


def _saliency(run: ClaimInputs, dataset: str) -> Claim | None:
    """Paper mode asks of all answers, strict mode of right and of wrong ones: both must show it.

    That a dip test does not reject is no sign of one hump.
    """
    table = _of(run, "saliency", dataset)
    if table.empty:
        return None
    keep = (table["loss"] == "probe") & (table["source"] == "exact")
    summed = np.array([str(layer) in ("", "nan") for layer in table["layer"]])  # over the layers
    used = cast(pd.DataFrame, table.loc[keep & summed])
    rows = {str(row["subset"]): row for row in used.to_dict("records")}
    return Claim(
        claim="saliency-two-humps",
        statement="the saliency of the exact question tokens has two humps (BIC, one less two)",
        source="paper",
        model=run.model,
        dataset=dataset,
        paper=_humps([rows.get("all")]),
        strict=_humps([rows.get("right"), rows.get("wrong")]),
        about_groups=False,
    )


def _humps(rows: list[dict | None]) -> Measured:
    """The weakest of these rows: two humps need a dip test that rejects and a BIC for two."""
    known = [row for row in rows if row is not None and np.isfinite(float(row["dip_p"]))]
    if not known or len(known) < len(rows):
        return Measured()
    bic = min(float(row["bic"]) for row in known)
    p = max(float(row["dip_p"]) for row in known) if bic > 0 else 1.0
    # Half, because a claim that can be decided either way is tested at twice its p.
    return Measured(value=bic, p_holds=p / 2, p_fails=1.0, otherwise="not shown")


def _heads(run: ClaimInputs, dataset: str) -> Claim | None:
    """Paper mode takes the head that does most and its number from the same questions; strict
    mode the four strongest heads, ranked on other questions than they are measured on.
    """
    table = _of(run, "heads", dataset)
    if table.empty:
        return None
    named = table["set"].fillna("")
    single = cast(pd.DataFrame, table.loc[named == ""])
    best = single.loc[single["delta_p"] == single["delta_p"].min()].head(1)
    four = table.loc[named == TOP].head(1)
    return Claim(
        claim="heads-carry",
        statement="cutting the strongest heads alone (one; four, ranked elsewhere) lowers ΔP",
        source="paper",
        model=run.model,
        dataset=dataset,
        paper=_below_zero(cast(pd.DataFrame, best)),
        strict=_below_zero(cast(pd.DataFrame, four)),
        about_groups=False,
    )


def _below_zero(rows: pd.DataFrame) -> Measured:
    return from_estimate(row_of(rows, ("delta_p", "low", "high")), Region(high=0.0))


def _windows(run: ClaimInputs, dataset: str) -> Claim | None:
    """Whether the blocks just below the layer do what all blocks up to it do."""
    table = run.evidence_at("windows", dataset)
    blocks = [] if table.empty else [b for b in table["layers"] if str(b).startswith("window:")]
    if not blocks:
        return None

    def gap(mode: str) -> Estimate:
        of = {"layers": blocks[0], "mode": mode}
        return difference(*(row_of(table, _ENDS, pathway=p, **of) for p in ("Q", "A")))

    paper, strict = (from_estimate(gap(mode), Region(high=0.0)) for mode in ("paper", "strict"))
    width = str(blocks[0]).removeprefix("window:")
    return Claim(
        claim="window-moves-q",
        statement=f"cutting only the {width} blocks up to the layer lowers Q more than A",
        source="paper",
        model=run.model,
        dataset=dataset,
        paper=paper,
        strict=strict,
    )


def _of(run: ClaimInputs, name: str, dataset: str) -> pd.DataFrame:
    """A table of evidence on one dataset; empty where it was not read."""
    table = run.evidence.get(name)
    if table is None:
        return pd.DataFrame()
    return cast(pd.DataFrame, table.loc[table["dataset"] == dataset])
