"""Numbers between host and device: what arrives is what was sent, and layouts need no counting."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from anchorscope.engine.decode import pad_left
from anchorscope.engine.layout import PAD, Layout
from anchorscope.engine.transfer import HostCopy, to_device, to_host

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_sent_is_there(device: str) -> None:
    place = torch.device(device)
    for numbers in ([3, 1, 2], [True, False], np.arange(6).reshape(2, 3), []):
        tensor = to_device(numbers, place)
        assert tensor.device.type == device
        assert np.array_equal(tensor.cpu().numpy(), np.asarray(numbers))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_arrive_halved_or_whole_where_a_half_cannot_hold_them(
    device: str, dtype: torch.dtype
) -> None:
    states = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    assert np.array_equal(to_host(states), states.to(torch.float16).cpu().numpy())
    for odd in (1e6, float("nan"), float("inf")):
        states[2, 1, 3] = odd
        array = to_host(states)
        assert array.dtype == np.float32
        assert np.array_equal(array, states.float().cpu().numpy(), equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_several_threads_may_wait_for_the_same_states(device: str) -> None:
    states = torch.full((64, 4, 8), 1e6, device=device)
    arriving, seen = HostCopy(states), []
    threads = [threading.Thread(target=lambda: seen.append(arriving.array())) for _ in range(8)]
    for thread in threads:
        thread.start()
    arriving.settle()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and all((array == 1e6).all() for array in seen)


def test_a_layout_that_knows_its_sizes_is_the_one_that_counts() -> None:
    rows = [range(4, 9), range(7, 8), range(2, 12)]
    at = pad_left(rows, PAD, torch.device("cpu"))
    counted = Layout(at, at, prefix_length=0)
    sized = Layout(at, at, prefix_length=0, sizes=[len(row) for row in rows])
    assert torch.equal(counted.place, sized.place) and len(sized.place) == 16
