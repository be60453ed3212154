"""Files written beside the computing: in order, whole, and errors are not lost."""

from __future__ import annotations

import threading

import pytest

from anchorscope.run_folder.store import Writer


def test_groups_are_done_in_order_the_files_of_one_at_the_same_time() -> None:
    writer, done, meeting = Writer(), [], threading.Barrier(3, timeout=30)

    def meet() -> None:
        meeting.wait()  # breaks unless three are under way at once
        done.append("met")

    writer.submit(meet, meet, meet)
    for number in range(20):
        writer.submit(lambda n=number: done.append(n))
    writer.submit(lambda: done.append(threading.current_thread().name))
    writer.close()
    *numbers, thread = done[3:]
    assert done[:3] == ["met"] * 3 and numbers == list(range(20))
    assert thread != threading.current_thread().name
    assert thread not in {each.name for each in threading.enumerate()}


def test_an_error_is_raised_and_stops_the_next_group_but_not_its_own() -> None:
    writer, done = Writer(), []

    def fail() -> None:
        raise OSError("the disk is full")

    writer.submit(lambda: done.append("before"))
    writer.submit(fail, lambda: done.append("beside"))
    writer.submit(lambda: done.append("after"))
    with pytest.raises(OSError, match="full"):
        writer.close()
    assert done == ["before", "beside"]
