"""All probes of a run's layers, trained in threads and in processes.

    python benchmarks/cores.py [--workers 2] [--repeats 3]

The states are made up; probes come out alike to the last digit. Processes are started before
anything is timed, as in a run, where several stages use the same ones.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import joblib
import numpy as np

from anchorscope.parallel import default_workers, in_parallel
from anchorscope.probes.cross_fit import fit_probes
from anchorscope.probes.probe_set import ProbeSet

SIZES = ((400, 30, 576), (1500, 30, 576), (1600, 28, 1536))  # questions, layers, width
BACKENDS = {"threads": "threading", "processes": "loky"}


def timed(backend: str, x: np.ndarray, workers: int) -> tuple[float, ProbeSet]:
    """Seconds, and the probes."""
    z, fold = np.arange(len(x)) % 2, np.arange(len(x)) // 2 % 5
    with joblib.parallel_config(backend=backend):
        in_parallel(abs, range(workers), workers=workers)
        begun = time.perf_counter()
        probes = fit_probes(
            x, z=z, fold=fold, entity=list(map(str, range(len(x)))), workers=workers
        )
        return time.perf_counter() - begun, probes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    for size in SIZES:
        x = rng.standard_normal(size, dtype=np.float32).astype(np.float16)
        seconds: dict[str, list[float]] = {name: [] for name in BACKENDS}
        weights: list[np.ndarray] = []
        for _ in range(given.repeats):
            for name, backend in BACKENDS.items():
                took, probes = timed(backend, x, given.workers)
                seconds[name].append(took)
                weights.append(probes.weights)
        alike = all(np.array_equal(weights[0], other) for other in weights)
        threads, processes = (median(seconds[name]) for name in BACKENDS)
        print(
            f"{size}: threads {threads:.2f} s, processes {processes:.2f} s, "
            f"{threads / processes:.1f} times; alike: {alike}"
        )


if __name__ == "__main__":
    main()
