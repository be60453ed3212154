"""Fits of many layers made at once: those of one layer after another, and the same run."""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest
import torch

from anchorscope.errors import UserError
from anchorscope.pathways.refit import Mahalanobis, distances
from anchorscope.probes import at_once
from anchorscope.probes.at_once import fits_of_layers, fits_on, of_layers, stop_fits
from anchorscope.probes.fold_probes import fold_logits, label_tasks, task_request
from anchorscope.probes.many_fits import Request, class_weights, fit_many

LAYERS, N, WIDTH = 4, 120, 40


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States [layer, question, width] in half precision, labels, and folds."""
    rng = np.random.default_rng(0)
    z = (rng.random(N) < 0.4).astype(float)
    x = rng.normal(size=(LAYERS, N, WIDTH)) * np.geomspace(0.1, 10, WIDTH) + 3.0
    x[:, :, 0] += np.arange(1, LAYERS + 1)[:, None] * 0.1 * z  # later layers say more
    x[2, :, 5] = 7.0  # a constant feature
    return x.astype(np.float16), z, rng.integers(0, 4, size=N)


def as_torch(of: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(of, dtype=np.float64))


@pytest.mark.parametrize("wrap", [np.asarray, as_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("C", [0.3, 3.0, 100.0])
def test_layers_at_once_are_the_layers_alone(world, wrap, C):
    x, z, fold = world
    x = x.astype(np.float64)
    learns = np.array([fold != number for number in range(4)])
    weights = class_weights(z, learns, "weights")
    strengths = np.full(4, C)
    together = fit_many(*(wrap(of) for of in (x, z, weights, strengths)))
    for layer, states in enumerate(x):
        alone, shift = fit_many(states, z, weights, strengths)
        logits = states @ np.asarray(together[0][layer]).T + np.asarray(together[1][layer])
        # Both end within 1e-4 of the exact solution, by products that round in another order.
        assert logits == pytest.approx(states @ alone.T + shift, abs=1e-4)
    assert not np.asarray(together[0])[2, :, 5].any()


def test_labels_and_the_number_of_fits_may_differ_by_layer(world):
    """As of pathways, which every layer has of its own; one class is too small in a layer."""
    x, z, fold = world
    labels = np.array([np.roll(z, 3 * layer) for layer in range(LAYERS)])
    labels = np.stack([labels, 1 - labels], axis=1)  # [layer, task, question]
    labels[1, 1, ::3] = np.nan
    labels[3, 0, 2:] = 0.0
    requests = [task_request(label_tasks(of, fold, C=1.0), N, least=3) for of in labels]
    assert [0 if of is None else len(of.C) for of in requests] == [8, 8, 8, 4]
    with fits_on("cpu"):
        made = fits_of_layers(lambda k: (x[k - 1], requests[k - 1]), range(1, LAYERS + 1))
    for layer, (states, of) in enumerate(zip(x, labels, strict=True), start=1):
        given = fold_logits(states, of, fold, C=1.0, least=3, fits=made[layer])
        assert given == pytest.approx(fold_logits(states, of, fold, C=1.0, least=3), abs=1e-5,
                                      nan_ok=True)  # fmt: skip


def test_few_layers_at_a_time_are_the_same(world, monkeypatch):
    """Layers of unlike shape are not put together; one without fits is passed over."""
    x, z, fold = world
    request = task_request(label_tasks(z[None], fold, C=1.0), N)
    fewer = task_request(label_tasks(z[None, 1:], fold[1:], C=1.0), N - 1)

    def ask(layer):
        states = x[layer - 1]
        return {2: (states, None), 3: (states[1:], fewer)}.get(layer, (states, request))

    chunks = at_once._chunks(ask, [1, 4, 2, 3, 1], 2**20)
    assert [list(of) for of in chunks] == [[1, 4], [3], [1]]
    with fits_on("cpu"):
        one = fits_of_layers(ask, range(1, 5))
    alone = list(at_once._chunks(ask, [1, 4], 8 * N * WIDTH))
    assert [list(of) for of in alone] == [[1], [4]]
    assert list(one) == [1, 3, 4]
    other = {k: of for chunk in alone for k, of in at_once._fit(as_torch, chunk).items()}
    for layer in (1, 4):
        assert other[layer][0] == pytest.approx(one[layer][0], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("width", "values"), [(WIDTH, N), (4 * N, N), (WIDTH, 2)])
def test_distances_of_tensors_are_those_of_arrays(width, values):
    """Fewer features than states, and more; with two values alone nothing is shrunken."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(N, width)) * np.geomspace(0.1, 10, width) + 3.0
    x = x[np.arange(N) // 4 % values]
    x[:, 1] = 5.0
    y, fold = x + rng.normal(size=x.shape), np.arange(N) % 4
    assert Mahalanobis(x[fold != 0]).thin == (values == 2)
    wanted = distances(x, y, fold)
    assert np.median(wanted[0]) > np.median(wanted[1])
    assert distances(as_torch(x), as_torch(y), fold) == pytest.approx(wanted, rel=1e-9)
    with fits_on("cpu"):
        given = of_layers(lambda there, k: distances(there(x), there(y), fold), [1, 2])
    assert given[2] == pytest.approx(wanted, rel=1e-9)


def test_without_a_device_or_its_memory_there_are_none(world):
    x, z, fold = world
    request = task_request(label_tasks(z[None], fold, C=1.0), N)

    def out_of_memory(layer: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def ask(layer: int) -> tuple[np.ndarray, Request | None]:
        return x[layer - 1], request

    assert fits_of_layers(ask, range(1, 5)) == {}
    with fits_on("cuda:99"):
        assert fits_of_layers(ask, range(1, 5)) == {}
    with fits_on("cpu"):
        # As of states that are no numbers.
        assert of_layers(lambda there, k: torch.linalg.cholesky(there(-np.eye(2))), [1]) == {}
        assert fits_of_layers(out_of_memory, range(1, 5)) == {}
        assert list(fits_of_layers(ask, range(1, 5))) == [1, 2, 3, 4]  # it goes on all the same
        stop_fits()
        assert fits_of_layers(ask, range(1, 5)) == {}


def test_a_mistake_is_heard_of_and_the_process_ends_with_its_block():
    def fail(layer: int) -> None:
        raise UserError("There is no such file.")

    with fits_on("cpu"):
        with pytest.raises(UserError, match="no such file"):
            fits_of_layers(fail, [1])
        process = psutil.Process(at_once._PROCESS.get().made(os.getpid))
        assert process.pid != os.getpid()
    assert psutil.wait_procs([process], 30)[1] == []
