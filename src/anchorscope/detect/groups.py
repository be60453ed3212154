"""The two groups that experts are trained on: pathways, or clusters that know of none."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from anchorscope.detect.material import Material
from anchorscope.detect.reading import inner_logits
from anchorscope.errors import UserError
from anchorscope.pathways.effects import flips

_DIRECTIONS = 8  # of largest spread: distances in hundreds of directions are all alike


def pathway_groups(material: Material, layer: int, *, C: float) -> np.ndarray:
    """1.0 for Q, 0.0 for A, [question]; NaN where there is no knocked-out state.

    From probes that never saw the question, and from the training material alone.
    """
    logits = inner_logits(material, layer, C=C)
    if "knockout" not in logits:
        raise UserError("Pathways need states under the knockout, and this run has none.")
    return flips(logits["clean"], logits["knockout"])


def clusters(x: np.ndarray, *, seed: int) -> np.ndarray:
    """Two groups of states [question, width] by k-means, 0.0 and 1.0, [question]."""
    x = np.asarray(x, dtype=np.float64)
    scale = x.std(axis=0)
    scaled = (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    count = min(_DIRECTIONS, *scaled.shape)
    points = PCA(n_components=count, random_state=seed).fit_transform(scaled)
    found: Any = KMeans(n_clusters=2, n_init=cast(Any, 4), random_state=seed).fit_predict(points)
    return found.astype(np.float64)
