"""All probes of a run's layers at once, against scikit-learn fit by fit in as many processes.

    python benchmarks/probes.py [--layers 4] [--workers 2] [--repeats 3]

Three kinds of probe × five folds per layer, and the same for three sets of folds. The states are
made up, with falling spectra, and stored in half precision as a run stores them. The two ways take
turns, so that both meet the same load. Processes are started before anything is timed. Printed:
median seconds for all layers of a model of that size (from the layers that were fitted), the ratio,
and how far the logits are apart.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from anchorscope.parallel import default_workers, in_parallel
from anchorscope.probes.folds import PROBES, entity_folds, training_rows
from anchorscope.probes.linear_probe import DEFAULT_C
from anchorscope.probes.many_fits import class_weights, fit_many

Way = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Timed = tuple[float, np.ndarray]
SIZES = ((1500, 30, 576), (2000, 28, 1536))  # questions, layers, width


def made_up(n: int, layers: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """States [question, layer, width] whose spread falls as 1/i, and classes in 50 directions."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((n, width))
    basis = rng.standard_normal((layers, width, width)) / np.sqrt(width)
    states = np.einsum(
        "nw,lwv->nlv", hidden / np.sqrt(np.arange(1, width + 1)), basis, optimize=True
    )
    signal = hidden[:, 5:55] @ rng.standard_normal(50) / np.sqrt(50)
    z = (1.5 * signal + rng.logistic(size=n) > 0).astype(np.int64)
    return (states * rng.lognormal(size=width)).astype(np.float16), z


def parts(n: int, sets: int) -> np.ndarray:
    """Who learns from what, bool [fit, question]."""
    folds = [entity_folds([str(i) for i in range(n)], seed=seed) for seed in range(sets)]
    return np.array(
        [
            training_rows(fold, held_out=held_out, probe=probe)
            for fold in folds
            for probe in PROBES
            for held_out in range(5)
        ]
    )


def one_by_one(x: np.ndarray, z: np.ndarray, learns: np.ndarray) -> np.ndarray:
    """Logits [fit, question] at one layer x, of probes that scikit-learn fits one after another."""
    logits = []
    for rows in learns:
        solver = LogisticRegression(
            C=DEFAULT_C / rows.sum(), class_weight="balanced", tol=1e-5, max_iter=1000
        )
        probe = make_pipeline(StandardScaler(), solver).fit(x[rows], z[rows])
        logits.append(probe.decision_function(x))
    return np.array(logits)


def at_once(x: np.ndarray, z: np.ndarray, learns: np.ndarray) -> np.ndarray:
    """The same logits from one batch."""
    weights = class_weights(z, learns, "weights")
    coefficients, intercept = fit_many(x, z, weights, np.full(len(learns), DEFAULT_C))
    return coefficients @ x.T + intercept[:, None]


def timed(way: Way, x: np.ndarray, z: np.ndarray, learns: np.ndarray, workers: int) -> Timed:
    """Seconds, and the logits [layer, fit, question]."""
    begun = time.perf_counter()
    logits = in_parallel(
        lambda layer: way(np.asarray(x[:, layer], dtype=np.float64), z, learns),
        range(x.shape[1]),
        workers=workers,
    )
    return time.perf_counter() - begun, np.array(logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    in_parallel(abs, range(given.workers), workers=given.workers)
    for (n, layers, width), sets in itertools.product(SIZES, (1, 3)):
        x, z = made_up(n, given.layers, width)
        of = (x, z, parts(n, sets), given.workers)
        turns = [[timed(way, *of) for way in (one_by_one, at_once)] for _ in range(given.repeats)]
        slow, fast = (
            median(turn[way][0] for turn in turns) * layers / given.layers for way in (0, 1)
        )
        apart = np.abs(turns[0][0][1] - turns[0][1][1]).max()
        print(
            f"{n} questions, {layers} layers, width {width}, {15 * sets} probes a layer: one by "
            f"one {slow:.1f} s, at once {fast:.1f} s, {slow / fast:.1f} times; logits apart by "
            f"{apart:.0e} at most",
            flush=True,
        )


if __name__ == "__main__":
    main()
