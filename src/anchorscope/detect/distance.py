"""Mahalanobis distance of a state from the training states: how unlike them a question is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from anchorscope.detect.inner_probes import choose
from anchorscope.detect.material import Material

DIRECTIONS = 64  # of largest spread; the others share one variance, as in probabilistic PCA
_PER_DIRECTION = 4  # training answers at least, or the variances are luck
_STEPS = 101  # quantiles kept
FAR = 0.95  # share of held-out training answers that are nearer: beyond it nothing is concluded


def far_reason(distance: float) -> str:
    """Why nothing is concluded at this distance; empty where it is near enough, or not known."""
    if not distance >= FAR:
        return ""
    return (
        f"it is unlike what the detector learnt from: {distance:.0%} of the held-out training "
        f"answers are nearer to the others, and from {FAR:.0%} on nothing is concluded"
    )


@dataclass(frozen=True, kw_only=True)
class Distance:
    """A Mahalanobis distance at one layer, with the distances of held-out training answers.

    The covariance is shrunk by taking all but the leading directions as alike; whole covariances
    (Ledoit-Wolf) of wide models would make the detector's file a hundred times as large.
    """

    layer: int
    mean: np.ndarray  # [width]
    scale: np.ndarray  # [width]
    directions: np.ndarray  # [direction, width], of the standardised states
    variances: np.ndarray  # [direction]
    rest: float  # the variance in every other direction
    seen: np.ndarray  # [quantile], distances of held-out training answers, rising

    def distances(self, states: np.ndarray) -> np.ndarray:
        """The distance of each state [question, width], [question]."""
        x = (states.astype(np.float64) - self.mean) / self.scale
        along = x @ self.directions.T.astype(np.float64)
        beside = (x**2).sum(axis=1) - (along**2).sum(axis=1)
        return np.sqrt((along**2 / self.variances).sum(axis=1) + beside.clip(0) / self.rest)

    def place(self, states: np.ndarray) -> np.ndarray:
        """The share of held-out training answers that are nearer than each state, [question]."""
        return np.searchsorted(self.seen, self.distances(states)) / len(self.seen)

    def tensors(self, prefix: str = "distance.") -> dict[str, np.ndarray]:
        """The arrays that make it up, ready for safetensors."""
        names = ("mean", "scale", "directions", "variances", "seen")
        arrays = {f"{prefix}{name}": getattr(self, name) for name in names}
        return arrays | {f"{prefix}at": np.array([self.layer, self.rest])}

    @classmethod
    def restore(cls, tensors: dict[str, np.ndarray], prefix: str = "distance.") -> Distance | None:
        """What `tensors` gave; None where a folder holds none."""
        own = {
            name.removeprefix(prefix): array
            for name, array in tensors.items()
            if name.startswith(prefix)
        }
        if not own:
            return None
        layer, rest = own.pop("at").tolist()
        # A whole number that was kept as a float; half a layer stays one, and is refused.
        return cls(layer=int(layer) if layer == int(layer) else layer, rest=rest, **own)


def learn_distance(
    material: Material, *, states: str = "clean", layer: int | None = None
) -> Distance:
    """The distance from these answers at the layer of the single probe, or the one given."""
    layer = choose(material, states=states).layer if layer is None else layer
    x = material.layer(states, layer).astype(np.float64)
    held_out = np.empty(len(x))
    for fold in np.unique(material.inner):
        held = material.inner == fold
        held_out[held] = _fit(x[~held], layer).distances(x[held])
    return _fit(x, layer, np.quantile(held_out, np.linspace(0, 1, _STEPS)))


def _fit(x: np.ndarray, layer: int, seen: np.ndarray | None = None) -> Distance:
    scaler = StandardScaler().fit(x)
    count = max(1, min(DIRECTIONS, len(x) // _PER_DIRECTION, x.shape[1] - 1))
    spread = PCA(n_components=count, random_state=0).fit(scaler.transform(x))
    return Distance(
        layer=layer,
        mean=np.asarray(scaler.mean_),
        scale=np.asarray(scaler.scale_),
        directions=np.asarray(spread.components_, dtype=np.float32),
        variances=np.asarray(spread.explained_variance_).clip(1e-12),
        rest=float(max(spread.noise_variance_, 1e-12)),
        seen=np.empty(0) if seen is None else seen,
    )
