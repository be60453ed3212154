"""A few inputs of every target of the fuzzing; `python -m torture.fuzz` tries 100,000."""

from __future__ import annotations

import pytest

from torture.fuzz.target import Target, run_target
from torture.fuzz.targets import every_target

FEW = {
    "pages": 1, "figures": 1, "judge, long": 2, "spans, long": 2, "detectors": 12,
    "prompts, bundled": 0, "detectors of the hub": 10, "models of the hub": 2,
}  # fmt: skip
TARGETS = every_target()


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_no_input_ends_in_anything_but_a_sentence_of_ours(target):
    count = FEW.get(target.name, 25)
    if not count:
        pytest.skip("needs the bundled model: the long version tries it")
    outcome = run_target(target, count)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.inputs >= count


def test_a_traceback_a_hang_and_an_error_without_words_are_told():
    from hypothesis import strategies as st

    from anchorscope.errors import UserError

    def check(value: int) -> None:
        if value > 100:
            raise KeyError(value)
        raise UserError("" if value == 7 else "No.")

    told = run_target(Target(name="x", inputs=st.integers(0, 300), check=check, share=1), 200)
    assert any("KeyError: 101" in failure for failure in told.failures)  # made small
    assert told.refused and told.inputs >= 2
