"""Numbers between host and device: what arrives is what was sent, and layouts need no counting."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anchorscope.engine.decode import pad_left, read_prefix, write_answers
from anchorscope.engine.layout import PAD, Layout
from anchorscope.engine.lease import Lease
from anchorscope.engine.transfer import HostCopy, to_device, to_host
from anchorscope.models import load_model
from tests.kit.tiny import tiny_lm, tiny_tokenizer

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
    assert len(seen) == 8 and all((of == 1e6).all() for of in seen)


def test_a_layout_that_knows_its_sizes_is_the_one_that_counts() -> None:
    rows = [range(4, 9), range(7, 8), range(2, 12)]
    at = pad_left(rows, PAD, torch.device("cpu"))
    counted = Layout(at, at, prefix_length=0)
    known = Layout(at, at, prefix_length=0, sizes=[len(row) for row in rows])
    assert torch.equal(counted.place, known.place) and len(known.place) == 16


class _Asked(TorchDispatchMode):
    """The operations whose result the host must see, for which a GPU ends its work first."""

    names = ("nonzero", "_local_scalar_dense", "masked_select", "item")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        bools = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in self.names or bools:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_a_step_of_decoding_asks_for_nothing_but_who_has_ended() -> None:
    """Which is read once a step, as a copy; else Python cannot get ahead of a GPU."""
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    prompts = [(1, 2, 3, number) for number in range(4, 9)]
    with Lease(model) as lease:
        prefix = read_prefix(lease, prompts[0][:2])
        for stop in (torch.tensor([-1]), torch.arange(0, 300, 2)):  # nobody, and some at each step
            with _Asked() as asked:
                write_answers(lease, prefix, prompts, stop_ids=stop, limit=4)
            assert asked.seen == []
