"""Seconds that each detector which reads states takes to fit on one outer fold, one core.

    python benchmarks/detectors.py [--answers 2000] [--width 1536] [--layers 8] [--out FILE]
    PYTHONPATH=OLD/src python benchmarks/detectors.py --out old.npz   # another checkout
    python benchmarks/detectors.py --compare old.npz new.npz          # the same scores?

The states are made up: spectra that fall as 1/i, classes in 50 directions of which an answer's
pathway uses one half, a knockout that turns Q's half round, reweighted states that have one half
larger and the other smaller. Detectors are fitted in the order of `detect eval` and share what it
lets them share, so that a row counts what the rows above it did not pay for.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from threadpoolctl import threadpool_limits

from anchorscope import parallel
from anchorscope.detect.evaluate import chosen_by
from anchorscope.detect.kinds import make_methods
from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.stats.ranking import auroc

NAMES = ("question-only", "probe", "combined", "mop", "pr")
_BETAS = (0.25, 0.5, 1.0, 2.0)


def made_up(n: int, layers: int, width: int, *, clearer: float = 1.5, seed: int = 0) -> Material:
    """Answers on two pathways, with states as a run keeps them (half precision)."""
    rng = np.random.default_rng(seed)
    spectrum = 1 / np.sqrt(np.arange(1, width + 1))
    hidden = rng.standard_normal((n, width))
    q = hidden[:, 1] > 0
    halves = np.zeros((2, width))
    halves[0, 5:30], halves[1, 30:55] = rng.standard_normal((2, 25)) / 5
    signal = np.where(q, hidden @ halves[1], hidden @ halves[0])
    z = (4.0 * signal + rng.logistic(size=n) > 0).astype(np.int64)
    states: dict[tuple[str, int], np.ndarray] = {}
    size = rng.lognormal(size=width)

    def put(name: str, layer: int, of: np.ndarray, basis: np.ndarray) -> None:
        states[name, layer] = ((of * spectrum) @ basis * size).astype(np.float16)

    for layer in range(1, layers + 1):
        basis = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        seen = hidden + (0.3 + abs(layer - 0.7 * layers) / layers) * rng.standard_normal((n, width))
        seen = seen.astype(np.float32)
        put("clean", layer, seen, basis)
        knocked = seen.copy()
        knocked[:, 30:55] *= np.where(q, -1.0, 1.0)[:, None]
        put("knockout", layer, knocked, basis)
        put("question-only", layer, 0.5 * seen + rng.standard_normal((n, width)), basis)
        for beta in (sign * step for step in _BETAS for sign in (1, -1)):
            moved = seen + 0.1 * abs(beta) * rng.standard_normal((n, width))
            moved[:, 5:30] *= np.exp(-clearer * beta)
            moved[:, 30:55] *= np.exp(clearer * beta)
            put(f"reweight{beta:+}", layer, moved, basis)
    texts = tuple(
        Text(
            id=str(i), question=f"What is thing {i} of kind {i % 11}?", answer="some answer",
            log_probs=(-1.0 - float(z[i]) * rng.random(), -0.5), exact_answer=(1,),
            first_entropy=float(rng.random()), dataset="made-up", entity=f"thing {i}",
        )
        for i in range(n)
    )  # fmt: skip
    return Material(
        name="made-up", texts=texts, z=z, bank=Arrays(states, layers=layers), rows=np.arange(n)
    )


def fold_of(made: Material, names: tuple[str, ...], profile: str) -> dict[str, dict]:
    """What each detector took and found, fitted on four fifths and read on the rest."""
    held = np.arange(len(made)) % 5 == 0
    train, test = made.take(~held, seed=0), made.take(held)
    found = {}
    for name, one in make_methods(names).items():
        watch = cProfile.Profile() if name in profile.split(",") else None
        begun = time.process_time()  # other work on the machine does not count
        if watch:
            watch.runcall(one.fit, train)
            pstats.Stats(watch).sort_stats("cumulative").print_stats(35)
        else:
            one.fit(train)
        seconds = time.process_time() - begun
        score = one.decision_function(test)
        found[name] = {
            "seconds": seconds,
            "chosen": chosen_by(one),
            "auroc": auroc(test.z, score),
            "inner_auroc": one.inner_auroc_,
            "score": score,
            "inner": one.inner_scores_,
        }
        print(f"{name:18} {seconds:7.2f} s  {found[name]['auroc']:.4f}  {found[name]['chosen']}",
              flush=True)  # fmt: skip
    print(f"{'all of them':18} {sum(of['seconds'] for of in found.values()):7.2f} s")
    return found


def compare(old: str, new: str) -> None:
    """One row per detector: seconds of both, their ratio, and how far the scores are apart."""
    files = [np.load(path) for path in (old, new)]
    facts = [json.loads(str(file["facts"])) for file in files]
    print("detector            old s   new s  times  AUROC apart  score apart  same choice")
    total = np.zeros(2)
    for name in facts[0]:
        a, b = (fact[name] for fact in facts)
        apart = max(float(np.abs(files[0][key] - files[1][key]).max())
                    for key in (f"{name}/score", f"{name}/inner"))  # fmt: skip
        auc = max(abs(a[key] - b[key]) for key in ("auroc", "inner_auroc"))
        seconds = np.array([a["seconds"], b["seconds"]])
        total += seconds
        print(f"{name:18} {seconds[0]:6.2f}  {seconds[1]:6.2f}  {seconds[0] / seconds[1]:5.1f}"
              f"  {auc:11.1e}  {apart:11.1e}  {a['chosen'] == b['chosen']}")  # fmt: skip
    print(f"{'all of them':18} {total[0]:6.2f}  {total[1]:6.2f}  {total[0] / total[1]:5.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--clearer", type=float, default=1.5, help="how much β parts the pathways")
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument(
        "--profile", default="", help="names of detectors whose time is taken apart"
    )
    parser.add_argument("--out", help="an .npz of the scores")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"))
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare)
    made = made_up(asked.answers, asked.layers, asked.width, clearer=asked.clearer)
    names = tuple(asked.names.split(","))
    parallel._inside = True  # as a worker of `detect eval`: one thread, and no workers of its own
    with threadpool_limits(limits=1, user_api="blas"):
        found = fold_of(made, names, asked.profile)
    if asked.out:
        arrays = {
            f"{n}/{key}": of.pop(key) for n, of in found.items() for key in ("score", "inner")
        }
        np.savez(asked.out, facts=np.array(json.dumps(found)), **arrays)
    return None


if __name__ == "__main__":
    main()
