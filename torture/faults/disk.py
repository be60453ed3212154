"""Disks that are full, break, or may not be written to."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torture.faults.child import Ended
from torture.faults.place import Place
from torture.faults.points import refused_at, refused_from
from torture.faults.tally import Count


def said_well(ended: Ended) -> str:
    """What was wrong with how a command refused: it must be a sentence, with exit code 2."""
    if ended.code == 2 and not ended.traceback and "Error" in ended.said:
        return ""
    return f"it ended with {ended.code}: {ended.said[-700:]}"


def full_from_a_call(
    place: Place, count: Count, job: str, draw: random.Random, trials: int
) -> None:
    """The disk is full from some call on; then there is room again."""
    errors = (errno.ENOSPC, errno.EDQUOT)
    _refused(place, count, job, draw, trials, errors=errors, refuse=refused_from, when="from")


def broken_at_a_call(
    place: Place, count: Count, job: str, draw: random.Random, trials: int
) -> None:
    """One call fails, as of a disk that breaks or a server that is gone for a moment."""
    errors = (errno.EIO, errno.ESTALE, errno.EACCES)
    _refused(place, count, job, draw, trials, errors=errors, refuse=refused_at, when="at")


def _refused(
    place: Place,
    count: Count,
    job: str,
    draw: random.Random,
    trials: int,
    *,
    errors: Sequence[int],
    refuse: Callable[..., Any],
    when: str,
) -> None:
    """Calls that the disk refuses with one of these errors, each trial at another one."""
    place.whole(job)
    for _ in range(trials):
        count.go_on()
        number = draw.randrange(1, place.calls[job])
        error = draw.choice(errors)
        out = place.new()
        first = place.run(job, out, hooks=(refuse(number, error=error),))
        wrong = "" if first.code == 0 else said_well(first)
        what = f"{errno.errorcode[error]} {when} call {number}"
        _again(place, count, job, out, what, wrong)


def small_disk(place: Place, count: Count, job: str, draw: random.Random, trials: int) -> None:
    """A real small disk in memory that fills up, then grows; files of a limited size elsewhere."""
    place.whole(job)
    size = sum(p.stat().st_size for p in place.whole(job).rglob("*") if p.is_file())
    for _ in range(trials):
        count.go_on()
        room = draw.randrange(16 << 10, max(32 << 10, size))
        with tmpfs(place.new(), room) as disk:
            if disk is None:
                out, limit = place.new(), draw.randrange(1 << 10, 64 << 10)
                first = place.run(job, out, hooks=(lambda limit=limit: _limit(limit),))
            else:
                out = disk / "run"
                first = place.run(job, out)
            wrong = "" if first.code == 0 else said_well(first)
            if disk is not None:
                subprocess.run(["mount", "-o", "remount,size=256m", disk], check=True)
            _again(place, count, job, out, f"a disk of {room >> 10} KiB", wrong)


def read_only(place: Place, count: Count, job: str) -> None:
    """A folder that may not be written to: no run in it yet, and one that was begun."""
    closed, begun = place.new(), _begun(place, job)
    closed.mkdir()
    for name, folder, out in (("no run yet", closed, closed / "run"), ("begun", begun, begun)):
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        first = place.run(job, out, hooks=(_obey_modes,))
        wrong = said_well(first)
        if not wrong and name == "no run yet" and out.exists():
            wrong = "it left a folder"
        for path, mode in modes.items():
            path.chmod(mode)
        _again(place, count, job, out, f"read-only, {name}", wrong)


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[Path | None]:
    """A disk of so many bytes in memory; None where this user may not mount one."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, check=False)
    try:
        yield folder if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def _again(place: Place, count: Count, job: str, out: Path, trial: str, wrong: str) -> None:
    """The same command again, nothing in its way."""
    ended = place.run(job, out)
    lost = place.different(job, out) if ended.code == 0 else ["all"]
    if lost or ended.traceback:
        wrong = wrong or f"again, it ended with {ended.code}, {lost[:5]}: {ended.said[-500:]}"
    count.add(f"{job}, {trial}", wrong=wrong, lost=bool(lost))


def _begun(place: Place, job: str) -> Path:
    """A folder that lacks its last files."""
    out = place.copy(job)
    (out / "samples.parquet").unlink()
    return out


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _obey_modes() -> None:
    """Gives up root's right to write where nobody may; another user would lack Python itself.

    That is the capability CAP_DAC_OVERRIDE, dropped by the system call capset.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version of the call, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; low words, then high ones
    libc.capget(header, sets)
    for number in (0, 1):
        sets[number] &= ~0b10
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
