"""Real commands on a tiny random model, each in a forked process, with a fault planted in it.

The child calls `anchorscope.cli.main`, as the installed command does; torch is imported once for
all of them. What a command leaves is compared byte for byte with what an undisturbed one left.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from kit.rivers import river_rows
from kit.tiny import save_tiny

from anchorscope.cli import main

Hook = Callable[[], object]  # run in the child before the command begins
# All that changes a folder by name, and what syncs it to the disk.
CALLS = ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "truncate", "utime")
_QUESTIONS = 72
_TIMEOUT = 300.0  # seconds until a command counts as one that hangs
_IMPORTED = ("anchorscope", "transformers", "sklearn", "scipy", "pandas", "matplotlib")
_MODEL = (
    "--model model --data rivers.jsonl --verdicts verdicts.jsonl --max-tokens 4 --shard 18 "
    "--device cpu --dtype float32 --threads 1 --prompt text"
)
_RUN = "--resamples 100 --fold-seeds 1 --folds 3 --evidence none"
JOBS = {
    "collect": f"detect collect {_MODEL}",
    "run": f"run {_MODEL} {_RUN}",
    "train": "detect train whole-collect --method probe",
}
# Files that must come out the same.
_RESULTS = [f"{n}/**/*" for n in ("answers", "states", "evidence", "tables", "probes")]
_RESULTS += ["samples.parquet", "*.safetensors", "detector.json", "README.md"]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and all that it printed."""

    code: int  # below 0: the signal that ended it
    output: str
    seconds: float

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.output

    def require_refusal(self) -> None:
        """Fail unless the command ended well, or refused in a sentence with exit code 2."""
        refused = self.code == 2 and not self.traceback and "Error" in self.output
        assert self.code == 0 or refused, (self.code, self.output[-700:])


class Command:
    """An anchorscope command under way in a process of its own."""

    def __init__(self, words: list[str], *, cwd: Path, hook: Hook | None = None) -> None:
        self.log, self.begun = cwd / f".log.{os.urandom(4).hex()}", time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, cwd, self.log, hook)

    def wait(self, seconds: float) -> Ended | None:
        """How the command ended; None where it has not within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                output = self.log.read_text(errors="replace") if self.log.exists() else ""
                self.log.unlink(missing_ok=True)
                code = os.waitstatus_to_exitcode(status)
                return Ended(code, output, time.monotonic() - self.begun)
            if time.monotonic() >= until:
                return None
            time.sleep(0.005)

    def end(self) -> Ended:
        """How the command ended; one that hangs is killed and fails."""
        ended = self.wait(_TIMEOUT)
        if ended is None:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"A command hangs; it printed: {self.log.read_text()}")
        return ended


def _become(words: list[str], cwd: Path, log: Path, hook: Hook | None) -> None:
    """Run the command in this process, and never return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if hook is not None:
            hook()
        sys.argv = ["anchorscope", *words]
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            (cwd / ".modules").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Place:
    """A folder with a model, questions, and an undisturbed result of every job asked for."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="torture-"))
        self._results: dict[str, dict[str, bytes]] = {}
        self.seconds: dict[str, float] = {}  # of each undisturbed job
        self.calls: dict[str, int] = {}  # of the file system, in each undisturbed job
        self._made = 0
        pid = os.fork()  # this process computes nothing, so that its children have no threads
        if pid == 0:
            _make_world(self.folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def whole(self, job: str) -> Path:
        """The folder that an undisturbed command left."""
        out = self.folder / f"whole-{job}"
        if job not in self._results:
            if job == "train":
                self.whole("collect")
            ended = self.run(job, out)
            assert ended.code == 0, ended.output
            self._results[job] = _read_results(out)
            for name in (self.folder / ".modules").read_text().splitlines():
                if name.startswith(_IMPORTED) and name not in sys.modules:
                    with suppress(Exception):  # a module that only its parent can import
                        importlib.import_module(name)
            calls = self.folder / f".calls.{job}"
            again = self.new()  # as fast as every later one, and the first proof of equality
            ended = self.run(job, again, lambda: watch_calls(before=count_to(calls)))
            assert ended.code == 0 and not self.different(job, again), ended.output
            self.seconds[job], self.calls[job] = ended.seconds, calls.stat().st_size
        return out

    def new(self) -> Path:
        """A path without a folder; that of an earlier trial is removed."""
        self._made += 1
        shutil.rmtree(self.folder / f"out-{self._made - 4}", ignore_errors=True)
        return self.folder / f"out-{self._made}"

    def begin(self, job: str, out: Path, hook: Hook | None = None) -> Command:
        return Command([*JOBS[job].split(), "--out", str(out)], cwd=self.folder, hook=hook)

    def run(self, job: str, out: Path, hook: Hook | None = None) -> Ended:
        return self.begin(job, out, hook).end()

    def verify(self, out: Path) -> Ended:
        return Command(["verify", str(out)], cwd=self.folder).end()

    def different(self, job: str, out: Path) -> list[str]:
        """The files that are not those of an undisturbed command."""
        self.whole(job)
        before, now = self._results[job], _read_results(out)
        return sorted(n for n in {*before, *now} if before.get(n) != now.get(n))

    def require_continued(self, job: str, out: Path) -> None:
        """Fail unless the same command, undisturbed, ends well and leaves the same files."""
        ended = self.run(job, out)
        assert ended.code == 0 and not ended.traceback, (ended.code, ended.output[-600:])
        assert not self.different(job, out)


def _read_results(folder: Path) -> dict[str, bytes]:
    files = [p for pattern in _RESULTS for p in folder.glob(pattern)]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.is_file()}


def _make_world(folder: Path) -> None:
    save_tiny(folder / "model")
    questions = river_rows(_QUESTIONS)
    verdicts = [
        {"id": f"rivers:all:{row['id']}", "right": n % 2} for n, row in enumerate(questions)
    ]
    for name, rows in (("rivers", questions), ("verdicts", verdicts)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


Watcher = Callable[[str, int], object]  # gets the name of a call and its number from 1


def watch_calls(*, before: Watcher | None = None, after: Watcher | None = None) -> None:
    """Report each call of `CALLS` in this process, from now on."""
    lock, count = threading.Lock(), [0]

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def call(*args: Any, **options: Any) -> Any:
            with lock:
                count[0] += 1
                number = count[0]
            if before is not None:
                before(name, number)
            result = real(*args, **options)
            if after is not None:
                after(name, number)
            return result

        return call

    for name in CALLS:
        setattr(os, name, watched(name, getattr(os, name)))


def count_to(file: Path) -> Watcher:
    """Write down every call, one letter each."""

    def note(name: str, number: int) -> None:
        with file.open("ab") as out:
            out.write(name[0].encode())

    return note


def refuse(number: int, *, error: int = errno.EIO, ever_after: bool = False) -> Watcher:
    """Fail the call of this number; with `ever_after`, all later ones that take room too."""

    def fail(name: str, at: int) -> None:
        full = ever_after and at >= number and name in ("fsync", "link", "mkdir")
        if full or (not ever_after and at == number):
            raise OSError(error, os.strerror(error))

    return fail
