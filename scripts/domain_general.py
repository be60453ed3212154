"""Directions that might hold on every dataset, tried: train on all datasets but one, test on it.

    python scripts/domain_general.py runs/qa --limit 2000 --step 3

Ways to learn one direction from several datasets: a probe over all answers (`pooled`); the mean of
a direction for each dataset (`mean of directions`); a probe on states without what a linear map
predicts from the last question token (`question removed`). The layer is chosen, and the weight
beside the lowest log-probability fitted, on training datasets that are left out in turn. Printed:
AUROC on the dataset that was left out, alone and beside the log-probability.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.detect.evaluate import without_entities
from anchorscope.detect.kinds.combined import fit_weights, two_scores
from anchorscope.detect.material import Material, from_run, join
from anchorscope.parallel import in_parallel
from anchorscope.probes.linear_probe import DEFAULT_C
from anchorscope.probes.many_fits import class_weights, fit_many
from anchorscope.run_folder.view import RunView
from anchorscope.stats.ranking import auroc

RIDGE = 0.1  # of the mean square of the question's states
Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
# states [question, width], classes [question], datasets [question] -> weights [width]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, help="answers of each dataset, right and wrong alike")
    parser.add_argument("--step", type=int, default=2, help="of layers: neighbours read alike")
    parser.add_argument("--out", type=Path, help="the table as CSV")
    asked = parser.parse_args()
    views = [RunView.open(run, collected_ok=True) for run in asked.runs]
    parts = [from_run(v, name, limit=asked.limit) for v in views for name in v.datasets]
    if len(parts) < 3:
        raise SystemExit(f"Three datasets at least are needed; {len(parts)} are in these runs.")
    rows = [row for test in parts for row in left_out(test, parts, asked.step)]
    table = pd.DataFrame(rows)
    print(table.round(3).to_string(index=False))
    if asked.out:
        table.to_csv(asked.out, index=False)


def left_out(test: Material, parts: list[Material], step: int) -> list[dict]:
    """A row for each way: trained on the other parts, tested on this one."""
    train = without_entities(join([part for part in parts if part is not test]), test)
    layers = list(range(train.bank.layers, 0, -step))
    by_layer = in_parallel(lambda layer: one_layer(train, test, layer), layers)
    rows = []
    for way in WAYS:
        best = max(range(len(layers)), key=lambda n: by_layer[n][way][0])
        _, held_out, scores = by_layer[best][way]
        weights = fit_weights(two_scores(held_out, train), train.z)
        both = two_scores(scores, test) @ weights[:2]
        rows.append(
            {"test": test.name, "n": len(test), "way": way, "layer": layers[best],
             "alone": auroc(test.z, scores), "with log-prob": auroc(test.z, both),
             "lowest log-prob": auroc(test.z, two_scores(scores, test)[:, 1])}
        )  # fmt: skip
    return rows


def one_layer(train: Material, test: Material, layer: int) -> dict:
    """Of each way: AUROC with datasets held out in turn, those scores, and the test's scores."""
    found = {}
    for way, (fit, removes) in WAYS.items():
        x, held = (m.layer("clean", layer).astype(np.float64) for m in (train, test))
        scores = np.empty(len(train))
        for name in np.unique(train.datasets):
            rest = train.datasets != name
            own, other = x[rest], x[~rest]
            if removes:
                own, other = without_question(train.take(rest), train.take(~rest), layer)
            scores[~rest] = other @ fit(own, train.z[rest], train.datasets[rest])
        if removes:
            x, held = without_question(train, test, layer)
        mean = np.mean([auroc(train.z[of], scores[of]) for of in parts_of(train.datasets)])
        found[way] = (mean, scores, held @ fit(x, train.z, train.datasets))
    return found


def parts_of(datasets: np.ndarray) -> list[np.ndarray]:
    """The rows of each dataset, bool [question]."""
    return [datasets == name for name in np.unique(datasets)]


def pooled(x: np.ndarray, z: np.ndarray, datasets: np.ndarray) -> np.ndarray:
    """The weights [width] of one probe over all answers."""
    learns = np.ones((1, len(z)), dtype=bool)
    return fit_many(x, z, class_weights(z, learns, "weights"), np.array([DEFAULT_C]))[0][0]


def mean_direction(x: np.ndarray, z: np.ndarray, datasets: np.ndarray) -> np.ndarray:
    """The mean of each dataset's probe, all of one length on the spread of the states."""
    learns = np.stack(parts_of(datasets))
    strengths = np.full(len(learns), DEFAULT_C)
    each = fit_many(x, z, class_weights(z, learns, "weights"), strengths)[0]
    return (each / (x @ each.T).std(axis=0)[:, None]).mean(axis=0)


def without_question(train: Material, test: Material, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """The clean states of both less a ridge regression on the last question token's."""
    x, held = (m.layer("clean", layer).astype(np.float64) for m in (train, test))
    asked, other = (m.layer("question-only", layer).astype(np.float64) for m in (train, test))
    middle, from_middle = asked.mean(axis=0), asked - asked.mean(axis=0)
    square = from_middle.T @ from_middle
    square += RIDGE * np.trace(square) / len(square) * np.eye(len(square))
    slope = np.linalg.solve(square, from_middle.T @ (x - x.mean(axis=0)))
    return x - from_middle @ slope, held - (other - middle) @ slope


WAYS: dict[str, tuple[Fit, bool]] = {
    "pooled": (pooled, False),
    "mean of directions": (mean_direction, False),
    "question removed": (pooled, True),
}


if __name__ == "__main__":
    main()
