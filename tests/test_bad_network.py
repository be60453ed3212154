"""What servers answered that ended in a traceback, a wait or a wrong sentence: one fact each."""

from __future__ import annotations

import pytest
from torture.lying_hub import Lie, check_detector

from anchorscope.errors import in_a_line


def test_what_a_server_said_is_shown_as_one_line_without_controls():
    assert in_a_line(ValueError("\x1b[31mred\nmore")) == "?[31mred"
    assert in_a_line(ValueError("")) == "ValueError"
    assert len(in_a_line("x" * 10_000)) == 300


@pytest.mark.parametrize("at", [2, 6])
def test_a_detector_that_came_damaged_is_fetched_again(at):
    """It stayed in the hub's cache and was refused for ever; now no longer than the hub lies."""
    check_detector(Lie(at, "flip", at))
