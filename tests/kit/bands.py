"""Simulate readings over a band of layers with known effects."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anchorscope.pathways.band import Band
from anchorscope.probes.folds import Covariates

PROBES = ("paper", "a", "b")


def made_band(
    *,
    n: int = 400,
    seed: int = 0,
    margin: float = 3.0,
    lost: np.ndarray | float = 0.0,
    again: np.ndarray | float | None = None,
    whole: np.ndarray | float | None = None,
    spread: float = 0.5,
    error: float = 0.2,
    entities_of: int = 1,
    folds_seed: int = 0,
    overlap: float = 0.0,
    labels: Mapping[str, np.ndarray] | None = None,
) -> Band:
    """A band in which each sample loses `lost` [question] of its belief, `again` in the retest.

    Beliefs are `margin` on either side of zero with a spread of one; each probe reads them with an
    error of its own, and the cut adds noise of `spread` to a sample, the same for all probes.
    """
    rng = np.random.default_rng(seed)
    z = rng.permutation(np.arange(n) % 2)
    belief = margin * (2 * z - 1) + rng.normal(size=n)
    clean = belief + error * rng.normal(size=(len(PROBES), n))
    retest = clean + 0.1 * rng.normal(size=(len(PROBES), n))
    again = lost if again is None else again
    whole = lost if whole is None else whole

    def cut(before: np.ndarray, part: np.ndarray | float) -> np.ndarray:
        return before - part * belief + spread * rng.normal(size=n)

    logits = {
        "clean": clean,
        "retest": retest,
        "neutral": clean + 0.05 * rng.normal(size=n),
        "knockout": cut(clean, lost),
        "retest-knockout": cut(retest, again),
        "question": cut(clean, whole),
    }
    given = {
        "log_popularity": rng.normal(3, 1, n),
        "prompt_length": rng.integers(5, 25, n).astype(float),
        **(labels or {}),
    }
    entity = (np.arange(n) // entities_of).astype(str)
    order = np.random.default_rng(folds_seed).permutation(n)
    return Band(
        layers=(1,),
        logits=logits,
        probes=PROBES,
        z=z,
        fold=order[np.arange(n) // entities_of % n] % 5,
        covariates=Covariates(entity=entity, **given),
        overlap=overlap,
    )
