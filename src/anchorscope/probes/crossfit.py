"""Cross-fitting: every probe of every layer, trained, and read where it never looked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from anchorscope.errors import UserError
from anchorscope.probes.probe import DEFAULT_C, Balance, LinearProbe
from anchorscope.probes.probeset import ProbeSet
from anchorscope.probes.readings import Readings, check_states, read
from anchorscope.probes.splits import PROBES, check_enough, training_rows

Progress = Callable[[int, int], None]  # layers done, layers in all

# Each worker holds one layer in double precision a few times over: about 300 MB for 2,000
# questions of width 5,120.
MAX_WORKERS = 16
_THREADS = "anchorscope-layer"


def cross_fit(
    states: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    z: np.ndarray,
    fold: np.ndarray,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    dataset: str = "The data",
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Readings, ProbeSet]:
    """Readings of all questions under all interventions, and the probes that gave them.

    `states` maps an intervention to [question, layer, width] (memory-mapped is fine: one layer
    is converted at a time). Probes learn from the "clean" states alone.
    """
    z, fold = np.asarray(z), np.asarray(fold)
    check_states(states, ids=ids, z=z, fold=fold)
    _check_folds(fold)
    check_enough(z, fold, dataset=dataset)
    probes = fit_probes(
        states["clean"], z=z, fold=fold, C=C, balance=balance, workers=workers, progress=progress
    )
    return read(probes, states, ids=ids, z=z, fold=fold), probes


def fit_probes(
    clean: np.ndarray,
    *,
    z: np.ndarray,
    fold: np.ndarray,
    C: float = DEFAULT_C,
    balance: Balance = "weights",
    workers: int | None = None,
    progress: Progress | None = None,
) -> ProbeSet:
    """The probes trained on clean states [question, layer, width], for each fold held out."""
    _, layers, width = clean.shape
    folds = int(fold.max()) + 1
    parts = [
        [training_rows(fold, held_out=held_out, probe=probe) for held_out in range(folds)]
        for probe in PROBES
    ]
    weights = np.zeros((len(PROBES), folds, layers, width), dtype=np.float32)
    intercept = np.zeros((len(PROBES), folds, layers))

    def fit_layer(layer: int) -> None:
        x = np.asarray(clean[:, layer], dtype=np.float64)
        for kind, held_out in np.ndindex(len(PROBES), folds):
            rows = parts[kind][held_out]
            probe = LinearProbe(C=C, balance=balance).fit(x[rows], z[rows])
            weights[kind, held_out, layer] = probe.coef_[0]
            intercept[kind, held_out, layer] = probe.intercept_[0]

    each_layer(fit_layer, layers, workers, progress)
    return ProbeSet(
        probes=PROBES,
        weights=weights,
        intercept=intercept,
        n_train=np.array([[rows.sum() for rows in of] for of in parts], dtype=np.int64),
        C=float(C),
        balance=balance,
    )


def each_layer(
    work: Callable[[int], None],
    layers: int,
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Calls `work` with every layer, several at a time.

    Called from one of its own threads it works in place: threads of threads would only fight over
    the cores.
    """
    if threading.current_thread().name.startswith(_THREADS):
        workers = 1
    # Layers are independent and the solver's time goes into products that let other threads run;
    # one arithmetic thread each, or the threads would fight over the cores.
    with (
        threadpool_limits(limits=1, user_api="blas"),
        ThreadPoolExecutor(workers or default_workers(), thread_name_prefix=_THREADS) as pool,
    ):
        jobs = [pool.submit(work, layer) for layer in range(layers)]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                job.result()
                if progress is not None:
                    progress(done, layers)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def default_workers() -> int:
    """The cores this process may use, not all there are, and no more than MAX_WORKERS."""
    return min(joblib.cpu_count(), MAX_WORKERS)


def _check_folds(fold: np.ndarray) -> None:
    present = np.unique(fold)
    if len(present) < 3 or not np.array_equal(present, np.arange(len(present))):
        raise UserError(
            f"Folds are {present.tolist()}; accepted: 0, 1, 2, ... without a gap, at least three. "
            "Make them with entity_folds on these very questions."
        )
