"""The real command line in a forked process: torch is imported once, for hundreds of trials.

The child calls `anchorscope.cli.main` with the arguments in `sys.argv`, which is all that the
installed command does. It is a process of its own, so a signal ends it as it would end a user's.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anchorscope.cli import main

# Done in the child before the command begins; what it returns is called at the end, if it can be.
Hook = Callable[[], object]
_IMPORTED = ("anchorscope", "transformers", "sklearn", "scipy", "pandas", "matplotlib", "plotly")
_PATIENCE = 300.0  # seconds until a command counts as one that hangs


@dataclass(frozen=True)
class Ended:
    """How a command ended, and all that it printed."""

    code: int  # below 0: the signal that ended it
    said: str
    seconds: float

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.said


class Command:
    """An anchorscope command under way in a process of its own."""

    def __init__(self, words: list[str], *, cwd: Path, hooks: tuple[Hook, ...] = ()) -> None:
        self.log, self.begun = cwd / f".said.{os.urandom(4).hex()}", time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _be(words, cwd, self.log, hooks)

    def wait(self, seconds: float = _PATIENCE) -> Ended | None:
        """How the command ended; None where it has not within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return self._ended(status)
            if time.monotonic() >= until:
                return None
            time.sleep(0.005)

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> Ended:
        """How the command ended, by itself or, after a long time, by us: that is a failure."""
        ended = self.wait()
        if ended is None:
            self.kill(signal.SIGKILL)
            raise AssertionError(f"A command hangs; it said: {self.log.read_text()}")
        return ended

    def _ended(self, status: int) -> Ended:
        said = self.log.read_text(errors="replace") if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), said, time.monotonic() - self.begun)


def command(*words: object, cwd: Path, hooks: tuple[Hook, ...] = ()) -> Ended:
    """How an undisturbed command ended."""
    return Command([str(word) for word in words], cwd=cwd, hooks=hooks).end()


def modules_to(file: Path) -> Hook:
    """Writes down which modules the command had imported when it ended."""
    return lambda: lambda: file.write_text("\n".join(sys.modules))


def import_all(file: Path) -> None:
    """Imports what a command had imported, so that the next child need not."""
    for name in file.read_text().splitlines():
        if name.startswith(_IMPORTED) and name not in sys.modules:
            with suppress(Exception):  # a module that only its parent can import
                importlib.import_module(name)


def _be(words: list[str], cwd: Path, log: Path, hooks: tuple[Hook, ...]) -> None:
    """Is the command, and never returns."""
    code, last = 1, []
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        last = [hook() for hook in hooks]
        sys.argv = ["anchorscope", *words]
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for each in filter(callable, last):
            each()  # type: ignore[operator]
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
