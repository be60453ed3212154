"""A target of the fuzzing: what it is given, and what must hold; and how one is run."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.strategies import SearchStrategy

from anchorscope.errors import UserError

SECONDS = 20.0  # of the processor, for one input; more is a hang


class Hang(Exception):
    """An input took longer than `SECONDS`."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """`check` is called with each input and fails, by any error but `UserError`, where it breaks.

    `share` is the part of a long run's inputs that go here.
    """

    name: str
    inputs: SearchStrategy[Any]
    check: Callable[[Any], object]
    share: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a target's inputs."""

    target: str
    inputs: int
    refused: int  # by a sentence of ours
    seconds: float
    failures: tuple[str, ...]  # a traceback each, with the smallest input that gives it


def run_target(target: Target, count: int, *, seed: int | None = None) -> Outcome:
    """The outcome of so many inputs; of each kind of failure one is told, made small."""
    counts, shown = {"inputs": 0, "refused": 0}, {"last": ""}

    def one(value: Any) -> None:
        counts["inputs"] += 1
        try:
            with within(SECONDS):
                target.check(value)
        except UserError as error:
            counts["refused"] += 1
            _check_sentence(str(error))
        except Exception:
            shown["last"] = repr(value)[:700]
            raise

    test = given(target.inputs)(one)
    test = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        derandomize=seed is None,
    )(test)
    if seed is not None:
        test = hypothesis.seed(seed)(test)
    begun, failures = time.monotonic(), ()
    try:
        test()
    except Exception as error:  # a group, where there are several kinds of failure
        failures = tuple(
            _told(one, shown["last"]) for one in getattr(error, "exceptions", (error,))
        )
    seconds = time.monotonic() - begun
    return Outcome(target=target.name, seconds=seconds, failures=failures, **counts)


def _check_sentence(text: str) -> None:
    """An error is read by a person, in a terminal: not empty, and not the input over again."""
    assert text.strip(), "an error without words"
    assert len(text) < 20_000, f"an error of {len(text)} characters"


def _told(error: BaseException, shown: str) -> str:
    return "".join(traceback.format_exception(error))[-1500:] + f"\nlast of them: {shown}\n"


@contextmanager
def within(seconds: float, *, clock: bool = False) -> Iterator[None]:
    """Raises `Hang` after so many seconds of the processor; in other threads nothing is done.

    With `clock` they are those of the clock: whoever waits uses no processor.
    """
    number, timer = (
        (signal.SIGALRM, signal.ITIMER_REAL) if clock else (signal.SIGPROF, signal.ITIMER_PROF)
    )
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Hang(f"an input took more than {seconds:g} s {'' if clock else 'of the processor'}")

    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds, 1.0)  # again, where somebody swallows it
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
