"""From which layer on something is decided."""

from __future__ import annotations

import numpy as np

WITHIN = 0.02  # AUROC by which a layer may fall short of the best one


def settled_layer(values: np.ndarray, *, within: float = WITHIN) -> int | None:
    """The settled layer (from 1): the first from which the values [layer] stay within `within`
    of their greatest; None where no value is known. A layer without a value breaks the stretch.
    """
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).any():
        return None
    near = values >= np.nanmax(values) - within  # NaN compares as False
    if not near[-1]:
        return None
    far = np.flatnonzero(~near)
    return int(far[-1]) + 2 if len(far) else 1
