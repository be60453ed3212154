"""The drawn answers to one question, as detectors see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Entailed:
    """Which answers mean the same by an NLI model, and what asking it took."""

    meaning: tuple[int, ...]  # of the greedy answer, then of each drawn one
    passes: int  # of the NLI model
    ms: float


@dataclass(frozen=True, kw_only=True)
class SampledAnswers:
    """Several drawn answers to one question, and what drawing them took."""

    texts: tuple[str, ...]
    log_probs: tuple[float, ...]  # of each whole answer, at temperature 1
    lengths: tuple[int, ...]  # in tokens
    passes: int  # forward passes of single rows, all answers together
    ms: float
    nli: Entailed | None = None


def sampled_by_id(rows: pd.DataFrame) -> dict[str, SampledAnswers]:
    """The drawn answers of each question, from the rows of evidence/sampled."""
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in rows.sort_values("number").to_dict("records"):
        by_id.setdefault(str(row["id"]), []).append({str(k): v for k, v in row.items()})
    return {
        id: SampledAnswers(
            texts=tuple(str(row["text"]) for row in own),
            log_probs=tuple(float(row["log_prob"]) for row in own),
            lengths=tuple(int(row["tokens"]) for row in own),
            passes=sum(int(row["passes"]) for row in own),
            ms=sum(float(row["ms"]) for row in own),
        )
        for id, own in by_id.items()
    }
