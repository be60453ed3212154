"""The table of detectors: each number with its interval, each detector against three others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.detect.methods import AUTO, make_method
from anchorscope.detect.metrics import (
    auprc,
    auroc_draws,
    brier,
    coverage_at,
    difference,
    ece,
    interval,
)
from anchorscope.probes.metrics import auroc, holm

AGAINST = ("probe", "text", "auto")
RISKS = (0.05, 0.10)


def detectors_table(
    scores: pd.DataFrame, *, model: str, seed: int = 0, resamples: int = 2000
) -> pd.DataFrame:
    """One row per dataset, split and detector, from the rows of `evaluate`."""
    groups: Any = scores.groupby(["dataset", "split"], sort=False)
    frames = [
        _one(part, seed, resamples).assign(dataset=name, split=split)
        for (name, split), part in groups
    ]
    table = pd.concat(frames, ignore_index=True)
    table.insert(0, "model", model)
    first = ["model", "dataset", "split", "detector", "title"]
    return cast(pd.DataFrame, table[first + [c for c in table.columns if c not in first]])


def _one(part: pd.DataFrame, seed: int, resamples: int) -> pd.DataFrame:
    by_name = {
        str(name): cast(pd.DataFrame, rows.sort_values("id"))
        for name, rows in part.groupby("detector", sort=False)
    }
    names = list(by_name)
    same = {tuple(rows["id"]) for rows in by_name.values()}
    assert len(same) == 1, "every detector scores the same answers, or they cannot be paired"
    z = by_name[names[0]]["z"].to_numpy()
    scored = [by_name[name]["score"].to_numpy(dtype=float) for name in names]
    draws = dict(zip(names, auroc_draws(z, scored, seed=seed, resamples=resamples), strict=True))
    value = {name: auroc(z, score) for name, score in zip(names, scored, strict=True)}
    rows = [_numbers(name, by_name[name], value[name], draws[name]) for name in names]
    table = pd.DataFrame(rows)
    for against, other in _others(value).items():
        table = table.assign(**_against(against, other, value, draws))
    return table


def _numbers(name: str, rows: pd.DataFrame, value: float, draws: np.ndarray) -> dict[str, Any]:
    z = rows["z"].to_numpy()
    probability = rows["probability"].to_numpy(dtype=float)
    score = rows["score"].to_numpy(dtype=float)
    estimate = interval(value, draws, len(z))
    method = make_method(name)
    return {
        "detector": name,
        "title": method.name,
        "n": len(z),
        "wrong": int(z.sum()),
        "auroc": value,
        "auroc_low": estimate.low,
        "auroc_high": estimate.high,
        "auprc": auprc(z, score),
        "ece": ece(z, probability),
        "brier": brier(z, probability),
        **{f"coverage_{risk * 100:.0f}": coverage_at(z, score, risk) for risk in RISKS},
        "extra_passes": np.nan if name == AUTO else method.extra_passes,
        "ms_per_answer": float(np.mean(rows["ms"].to_numpy())),
        "chosen": "; ".join(sorted(set(rows["chosen"]) - {""})),
    }


def _others(value: Mapping[str, float]) -> dict[str, str]:
    """What every detector is compared with: the single probe, the best text control, `auto`.

    The best text control is the best on these very answers: that makes it harder to beat, not
    easier.
    """
    text = [name for name in value if make_method(name).text_only]
    found = {"probe": "probe", AUTO: AUTO}
    found = {against: name for against, name in found.items() if name in value}
    if text:
        found["text"] = max(text, key=lambda name: value[name])
    return found


def _against(
    against: str, other: str, value: Mapping[str, float], draws: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Columns vs_<against>…: how much higher AUROC is, its interval, Holm's p."""
    found = [difference(value[n], value[other], draws[n] - draws[other]) for n in value]
    own = [name == other for name in value]
    p = [np.nan if same else d.p for d, same in zip(found, own, strict=True)]
    return {
        f"vs_{against}": [d.value for d in found],
        f"vs_{against}_low": [d.low for d in found],
        f"vs_{against}_high": [d.high for d in found],
        f"vs_{against}_p": holm(p),
        f"vs_{against}_is": other,
    }
