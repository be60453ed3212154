"""Batches: everything once, within the budget, whatever memory does."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine.batches import (
    Budget,
    ModelFacts,
    bounds_on_cpu,
    bounds_within,
    in_batches,
    room_on,
    set_facts,
    shard_of,
)
from anchorscope.errors import UserError
from anchorscope.models import load_model

# A search for garbage through all that the tests have imported would be most of their time.
NO_SEARCH = mock.patch("anchorscope.engine.batches.gc.collect")


def batches(lengths, budget, work=lambda batch: None, rows=None):
    """The batches made of things of these lengths; a thing is (length, number)."""
    things = [(length, number) for number, length in enumerate(lengths)]
    options = {"length": lambda t: t[0], "then": lambda t: t[1], "budget": budget, "rows": rows}
    return [batch for batch, _ in in_batches(things, work, **options)]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_everything_once_in_order_of_length_and_within_the_budget(lengths, tokens):
    made = batches(lengths, Budget(tokens))
    flat = [thing for batch in made for thing in batch]
    assert flat == sorted((length, n) for n, length in enumerate(lengths))
    for batch in made:
        assert len(batch) == 1 or sum(length for length, _ in batch) <= tokens


@pytest.mark.parametrize(
    ("count", "rows", "sizes"),
    [(64, 48, [32, 32]), (128, 48, [43, 43, 42]), (5, 48, [5]), (3, 1, [1] * 3)],
)
def test_rows_are_shared_out_evenly(count, rows, sizes):
    assert [len(batch) for batch in batches([2] * count, Budget(10_000), rows=rows)] == sizes


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 50))
def test_memory_that_runs_out_halves_the_batch_and_loses_nothing(lengths, holds):
    done, failed = [], []

    def work(batch):
        total = sum(length for length, _ in batch)
        if total > holds:
            failed.append(total)
            raise torch.OutOfMemoryError
        done.extend(batch)

    with NO_SEARCH:
        batches(lengths, Budget(1000), work)
    assert len(failed) == len(set(failed)) <= 8  # no size fails twice
    assert sorted(done) == sorted((length, n) for n, length in enumerate(lengths))


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "token", "tokens", "keys"),
    [
        (100 * GIB, 1 << 20, 32768, 16 * GIB),  # all that is usual, and a power of two
        (20 * GIB, 1 << 20, 8192, 4 * GIB),  # 10 GiB for packs hold 10,240
        (20 * GIB - 999, 1 << 20, 8192, 4 * GIB),  # a little less changes nothing
        (1 * GIB, 1 << 30, 256, GIB // 4),  # never none: what runs out is caught
    ],
)
def test_bounds_follow_from_free_memory_and_what_a_token_takes(free, token, tokens, keys):
    assert bounds_within(free, token) == Budget(tokens, written=keys, trunk=keys)


@pytest.mark.parametrize(
    ("memory", "tokens", "written"),
    [(24 * GIB, 2048, GIB), (8 * GIB, 2048, GIB // 2), (GIB, 512, GIB // 16)],
)
def test_bounds_on_a_cpu_follow_from_all_its_memory(memory, tokens, written):
    assert bounds_on_cpu(memory) == bounds_on_cpu(memory + 1) == Budget(tokens, written=written)


def test_batches_follow_from_the_dtype_and_from_the_bounds_that_are_noted():
    assert bounds_on_cpu(24 * GIB, half=True).tokens == 4096
    assert bounds_on_cpu(2 * GIB, half=True).tokens == 1024
    half = load_model(tiny_lm("llama").bfloat16(), tokenizer=tiny_tokenizer(), dtype="bfloat16")
    assert Budget.of(half).tokens == 4096
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    assert (Budget.of(model).tokens, Budget.of(model).trunk) == (2048, None)
    set_facts(model.lm, ModelFacts(Budget(512, written=1 << 20, trunk=1 << 21)))
    budget = Budget.of(model)
    assert (budget.tokens, budget.written, budget.trunk) == (512, 1 << 20, 1 << 21)
    set_facts(model.lm, ModelFacts(Budget(512, written=1 << 20, trunk=1 << 21), largest=64))
    assert Budget.of(model).tokens == 64


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
    ],
)
def test_every_device_may_run_out(error):
    done = []

    def work(batch):
        if len(batch) > 2:
            raise error
        done.extend(batch)

    batches([5] * 9, Budget(1000), work)
    assert len(done) == 9


def test_what_the_failed_batch_held_is_let_go_before_the_next():
    class Held:
        pass

    seen, alive = [], []

    def work(batch):
        seen.append(sum(ref() is not None for ref in alive))
        held = Held()
        alive.append(weakref.ref(held))
        if len(batch) > 1:
            raise torch.OutOfMemoryError

    batches([5] * 4, Budget(1000), work)
    assert set(seen) == {0}


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (torch.OutOfMemoryError(), UserError, "Memory ran out with a single question"),
        (RuntimeError("something else"), RuntimeError, "something else"),
    ],
)
def test_a_single_question_too_large_and_other_errors_end_the_run(raised, expected, message):
    def work(batch):
        raise raised

    with pytest.raises(expected, match=message):
        batches([3, 4], Budget(100), work)


def test_the_room_on_a_gpu_does_not_depend_on_what_is_free_just_now():
    total, weights = 140 << 30, 16 << 30
    rooms = {room_on(total, weights, free << 30) for free in (120, 100, 65)}
    assert rooms == {123 << 30}
    assert room_on(total, weights, 20 << 30) == 20 << 30  # another process holds the rest
    assert room_on(8 << 30, 16 << 30, 0) == 0


@pytest.mark.parametrize(
    ("blocks", "width", "size"),
    [(16, 2048, 4096), (28, 1536, 2048), (36, 4096, 1024), (64, 5120, 1024), (2, 8, 4096)],
)
def test_a_shard_on_a_gpu_is_bounded_by_the_bytes_of_its_states(blocks, width, size):
    gpu: Any = SimpleNamespace(
        device=torch.device("cuda"), blocks=blocks, parts=SimpleNamespace(width=width)
    )
    assert shard_of(gpu) == size
    assert size == 1024 or size * blocks * width * 2 <= 2**28


@pytest.mark.parametrize(
    ("weights", "size"), [(106_000_000, 64), (360_000_000, 32), (1_300_000_000, 8), (7 * 10**9, 4)]
)
def test_a_shard_on_a_cpu_is_bounded_by_its_operations(weights, size):
    """Half a minute of arithmetic on two cores: what a stop loses."""
    block = SimpleNamespace(parameters=lambda: [SimpleNamespace(numel=lambda: weights)])
    cpu: Any = SimpleNamespace(device=torch.device("cpu"), parts=SimpleNamespace(blocks=[block]))
    assert shard_of(cpu) == size
