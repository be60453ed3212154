"""Files written beside the computing: in order, whole, and errors are not lost."""

from __future__ import annotations

import threading

import pytest

from anchorscope.run_folder.store import Writer


def test_work_is_done_in_order_in_another_thread() -> None:
    done: list[tuple[int, str]] = []
    writer = Writer()
    for number in range(20):
        writer.submit(lambda n=number: done.append((n, threading.current_thread().name)))
    writer.close()
    assert [number for number, _ in done] == list(range(20))
    assert threading.current_thread().name not in {name for _, name in done}


def test_an_error_is_raised_and_nothing_is_written_after_it() -> None:
    writer, done = Writer(), []

    def fail() -> None:
        raise OSError("the disk is full")

    writer.submit(lambda: done.append("before"))
    writer.submit(fail)
    writer.submit(lambda: done.append("after"))
    with pytest.raises(OSError, match="full"):
        writer.close()
    assert "writer" not in " ".join(thread.name for thread in threading.enumerate())
    assert done == ["before"]


def test_works_of_a_group_run_at_the_same_time_and_end_before_the_next() -> None:
    writer, done, meeting = Writer(), [], threading.Barrier(3, timeout=30)

    def meet() -> None:
        meeting.wait()  # breaks unless three are under way at once
        done.append("met")

    writer.submit(meet, meet, meet)
    writer.submit(lambda: done.append("next"))
    writer.close()
    assert done == ["met"] * 3 + ["next"]


def test_an_error_stops_the_next_group_but_not_its_own() -> None:
    writer, done = Writer(), []

    def fail() -> None:
        raise OSError("the disk is full")

    writer.submit(fail, lambda: done.append("beside"))
    writer.submit(lambda: done.append("next"))
    with pytest.raises(OSError, match="full"):
        writer.close()
    assert done == ["beside"]
