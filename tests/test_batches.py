"""Batches: everything once, within the budget, whatever memory does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.errors import UserError


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
    done = []

    def work(batch):
        if sum(length for length, _ in batch) > holds:
            raise torch.OutOfMemoryError
        done.extend(batch)

    batches(lengths, Budget(1000), work)
    assert sorted(done) == sorted((length, n) for n, length in enumerate(lengths))


def test_a_budget_grows_back_when_memory_does():
    budget = Budget(64)
    budget.shrink()
    budget.shrink()
    assert budget.tokens == 16
    batches([1] * 16 * 99, budget)
    assert budget.tokens == 64


def test_memory_too_small_for_one_question_is_said():
    def work(batch):
        raise torch.OutOfMemoryError

    with pytest.raises(UserError, match="Memory ran out with a single question"):
        batches([3, 4], Budget(100), work)


def test_no_other_error_is_taken_for_memory():
    def work(batch):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        batches([3], Budget(100), work)
