"""Folders that move, clocks that jump, and two who want one folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import psutil

from torture.faults.child import Hook
from torture.faults.place import Place
from torture.faults.tally import Count


def moved(place: Place, count: Count, job: str, draw: random.Random, trials: int) -> None:
    """A folder is moved while nobody works on it, and continued at its new place."""
    place.whole(job)
    for _ in range(trials):
        count.go_on()
        out, moment = place.new(), draw.uniform(0.2, 0.9) * place.seconds[job]
        command = place.begin(job, out)
        if command.wait(moment) is None:
            command.kill(signal.SIGKILL)
            command.end()
        new = place.new()
        if out.exists():
            shutil.move(out, new)
        _finish(place, count, job, new, f"moved after {moment:.1f} s")


def clock_jumped(place: Place, count: Count, job: str, draw: random.Random, trials: int) -> None:
    """The clock jumps, by seconds or years, between a kill and what continues it."""
    place.whole(job)
    for _ in range(trials):
        count.go_on()
        jump = draw.choice((-1, 1)) * draw.choice((5, 3600, 86400 * 3, 86400 * 4000))
        out, moment = place.new(), draw.uniform(0.2, 0.9) * place.seconds[job]
        command = place.begin(job, out)
        if command.wait(moment) is None:
            command.kill(signal.SIGKILL)
            command.end()
        if out.exists():
            for file in out.rglob("*"):  # as if it had been written under the other clock
                os.utime(file, (time.time() - jump, time.time() - jump))
        _finish(place, count, job, out, f"the clock {jump:+d} s", hooks=(jumping(jump),))


def two_at_once(place: Place, count: Count, job: str, draw: random.Random, trials: int) -> None:
    """A second command for the same folder: it is refused in a sentence, whatever the clock says.

    The second sees another clock, hours away, in half of the trials: the boot seems to have been at
    another time then, and with it the birth of every process.
    """
    place.whole(job)
    for number in range(trials):
        count.go_on()
        jump = 0 if number % 2 else draw.choice((-7200, 7200))
        out = place.new()
        first = place.begin(job, out, hooks=(_slow,))
        while not (out / "owner.json").exists():
            if first.wait(0.02) is not None:
                break
        second = place.run(job, out, hooks=(jumping(jump),) if jump else ())
        ended = first.end()
        wrong = ""
        if second.code != 2 or "is being written by process" not in second.said:
            wrong = f"the second ended with {second.code}: {second.said[-300:]}"
        if ended.code != 0:
            wrong = wrong or f"the first ended with {ended.code}: {ended.said[-300:]}"
        _finish(place, count, job, out, f"a second owner, clock {jump:+d} s", wrong=wrong)


def torn_owner(place: Place, count: Count, job: str) -> None:
    """An owner's file that makes no sense or names a living process, beside a lock nobody holds."""
    texts = {
        "torn": b'{"host": "here", "process": 1',
        "a list": b"[1, 2]",
        "no text": b"\xff\xfe\x00",
        "without fields": b"{}",
        "a number that no process has": json.dumps({"host": "here", "process": 2**40}).encode(),
        "a living process": json.dumps({"host": "here", "process": os.getpid()}).encode(),
    }
    for name, text in texts.items():
        out = place.new()
        out.mkdir()
        (out / "owner.json").write_bytes(text)
        (out / "owner.lock").touch()
        _finish(place, count, job, out, f"owner.json: {name}")


def jumping(seconds: int) -> Hook:
    """A process whose clock, and with it the boot's time, is so many seconds off."""

    def hook() -> None:
        real_time, real_boot = time.time, psutil.boot_time
        time.time = lambda: real_time() + seconds
        boot = real_boot() + seconds
        psutil.boot_time = lambda: boot
        linux = getattr(psutil, "_pslinux", None)
        if linux is not None:
            linux.boot_time, linux.BOOT_TIME = psutil.boot_time, boot

    return hook


def _slow() -> None:
    """The first of two takes its time: what it brings to the disk takes a little longer."""
    real = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.02)
        real(handle)

    os.fsync = slow


def _finish(
    place: Place,
    count: Count,
    job: str,
    out: Path,
    trial: str,
    *,
    hooks: tuple[Hook, ...] = (),
    wrong: str = "",
) -> None:
    ended = place.run(job, out, hooks=hooks)
    lost = place.different(job, out) if ended.code == 0 else ["all"]
    if lost or ended.traceback:
        wrong = wrong or f"it ended with {ended.code}, {lost[:5]}: {ended.said[-500:]}"
    count.add(f"{job}, {trial}", wrong=wrong, lost=bool(lost))
