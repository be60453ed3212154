"""How a penalised logistic loss bends, guessed from some rows before the first step is taken.

Arrays are those of numpy or torch, on whatever device they are.
"""

from __future__ import annotations

import sys
from copy import copy
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

_ROWS = 400  # that tell of the curvature before the first step
_BEND = 0.15  # usual p (1 - p)

Array = Any  # numpy.ndarray or torch.Tensor


class Guess:
    """The inverse curvature that some rows of the matrix tell of: before a step it is all there is.

    Curvature is r + S'S with S these rows, scaled; its inverse, by Woodbury's identity,
    (1 - S'(r + SS')⁻¹S) / r, or (1 - H'H) / r where LH = S and LL' = r + SS'. r is 1/C and what the
    rows left out add in directions that these do not reach: with 1/C alone weak penalties take up
    to four times the steps. The r inside serves all fits; where theirs differ the steps make up
    for it.
    """

    def __init__(self, columns: Array, C: Array) -> None:
        xp = self.xp = namespace(columns)
        stride = -(-columns.shape[1] // _ROWS)
        rows = columns[:, ::stride, :-1]
        count = rows.shape[1]
        rows = (_BEND / count) ** 0.5 * rows
        gram = rows @ rows.swapaxes(1, 2)
        gram[:, range(count), range(count)] += float(xp.exp(xp.log(_least_bend(C)).mean()))
        self.half = solved_lower(xp.linalg.cholesky(gram), rows)  # [layer, row, width]

    def take(self, layers: Array) -> Guess:
        """That of some layers alone, by their numbers."""
        if len(layers) == len(self.half):
            return self
        some = copy(self)
        some.half = self.half[layers]
        return some

    def __call__(self, vector: Array, C: Array) -> Array:
        """The inverse curvature times a vector [layer, fit, width + 1]."""
        xp = self.xp
        of_features = xp.asarray(vector[..., :-1], dtype=self.half.dtype)
        known = (of_features @ self.half.swapaxes(1, 2)) @ self.half
        inner = (vector[..., :-1] - known) / _least_bend(C)[..., None]
        return xp.concatenate([inner, vector[..., -1:] / _BEND], axis=-1)


def _least_bend(C: Array) -> Array:
    """The curvature [layer, fit] where the guess's rows tell of none; features have _BEND."""
    return 1.0 / C + _BEND


def solved_lower(factor: Array, right: Array) -> Array:
    """What the lower triangles [..., row, row] times it gives `right` [..., row, column]."""
    if not isinstance(right, np.ndarray):
        return namespace(right).linalg.solve_triangular(factor, right, upper=False)
    if right.ndim == 2:
        return solve_triangular(factor, right, lower=True)
    return np.stack([solved_lower(*pair) for pair in zip(factor, right, strict=True)])


def namespace(x: Array) -> Any:
    """The library of an array: numpy, or torch where its caller has loaded it."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def to_numpy(x: Array) -> np.ndarray:
    """The same numbers in memory."""
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()
