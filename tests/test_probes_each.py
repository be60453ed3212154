"""Work in processes: in order, in other processes, one thread of arithmetic each, errors whole."""

from __future__ import annotations

import os
import time

import joblib
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel


def test_results_come_in_the_order_of_the_items():
    def late(number: int) -> int:
        time.sleep(0.2 if number == 0 else 0)
        return number**2

    heard = []
    found = in_parallel(late, range(5), workers=2, progress=lambda *told: heard.append(told))
    assert found == [0, 1, 4, 9, 16]
    assert heard == [(number, 5) for number in range(1, 6)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_work_is_elsewhere_only_where_there_are_several(workers):
    found = in_parallel(lambda _: os.getpid(), range(4), workers=workers)
    assert (os.getpid() in found) == (workers == 1)


def test_a_worker_starts_no_workers():
    def nested(_: int) -> set[int]:
        return {os.getpid(), *in_parallel(lambda _: os.getpid(), range(3), workers=2)}

    assert {len(pids) for pids in in_parallel(nested, range(4), workers=2)} == {1}


@pytest.mark.parametrize("workers", [1, 2])
def test_arithmetic_has_one_thread(workers):
    def threads(_: int) -> set[int]:
        np.ones((2, 2)) @ np.ones((2, 2))
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    assert in_parallel(threads, range(2), workers=workers) == [{1}, {1}]


def test_large_arrays_arrive_as_they_are():
    states = np.random.default_rng(0).standard_normal((400, 6, 200)).astype(np.float16)
    found = in_parallel(lambda layer: states[:, layer].astype(float).sum(), range(6), workers=2)
    assert found == [states[:, layer].astype(float).sum() for layer in range(6)]


def test_a_mistake_stays_the_user_s():
    def fail(number: int) -> int:
        if number == 1:
            raise UserError("Layer 1 holds NaN.")
        return number

    with pytest.raises(UserError, match=r"Layer 1 holds NaN\."):
        in_parallel(fail, range(3), workers=2)


def test_threads_that_a_caller_asks_for_leave_no_trace():
    """Inside joblib's own choice of threads this process does not take itself for a worker."""
    with joblib.parallel_config(backend="threading"):
        assert set(in_parallel(lambda _: os.getpid(), range(3), workers=2)) == {os.getpid()}
    assert os.getpid() not in in_parallel(lambda _: os.getpid(), range(3), workers=2)


def test_nothing_to_do():
    assert in_parallel(abs, []) == []
