"""Memory that runs out, in a pass of the model or for the whole process; workers that vanish."""

from __future__ import annotations

import random
import re
import resource
import signal
from os import kill
from pathlib import Path

from torture.faults.child import Hook
from torture.faults.disk import said_well
from torture.faults.place import Place
from torture.faults.tally import Count

_NAMED = re.compile(r"worker \d of \d is process (\d+)")


def out_of_memory(place: Place, count: Count, job: str, draw: random.Random, trials: int) -> None:
    """The n-th pass of the model says that a GPU's memory is full, once.

    In a batch it is halved and the run goes on; elsewhere it is said, and the command continues.
    Smaller batches round otherwise, so the files are held against their checksums alone.
    """
    place.whole(job)
    for _ in range(trials):
        count.go_on()
        number, out = draw.randrange(1, 40), place.new()
        ended = place.run(job, out, hooks=(_fails_at(number),))
        wrong = "" if ended.code == 0 and not ended.traceback else said_well(ended)
        again = place.run(job, out)
        verified = place.type("verify", out)
        if again.code != 0 or verified.code != 0:
            wrong = wrong or f"again: {again.said[-300:]}; verify: {verified.said[-300:]}"
        count.add(f"{job}, out of memory in pass {number}", wrong=wrong, lost=verified.code != 0)


def little_memory(place: Place, count: Count, job: str, draw: random.Random, trials: int) -> None:
    """A process that may not have more than a little memory beside what it has."""
    place.whole(job)
    for _ in range(trials):
        count.go_on()
        room, out = draw.choice((1, 4, 16, 64)) << 20, place.new()
        first = place.run(job, out, hooks=(lambda room=room: _limit(room),))
        # A process without memory may die in ways no code of ours sees; its folder must live.
        wrong = "" if first.code <= 0 or first.code == 1 else said_well(first)
        ended = place.run(job, out)
        lost = place.different(job, out) if ended.code == 0 else ["all"]
        if lost:
            wrong = wrong or f"again: {ended.code}, {lost[:5]}: {ended.said[-300:]}"
        count.add(f"{job}, {room >> 20} MiB more", wrong=wrong, lost=bool(lost))


def lost_worker(place: Place, count: Count, *, trials: int) -> None:
    """A worker of two is killed as soon as it is named: another takes its place."""
    place.whole("collect")
    for _ in range(trials):
        count.go_on()
        out = place.new()
        command = place.begin("collect", out, hooks=(_with_workers,))
        killed, wrong = False, ""
        while (ended := command.wait(0.05)) is None:
            found = _NAMED.search(_said(command.log))
            if found and not killed:
                kill(int(found[1]), signal.SIGKILL)
                killed = True
        if ended.code != 0 or not killed:
            wrong = f"it ended with {ended.code}: {ended.said[-500:]}"
        lost = place.different("collect", out) if ended.code == 0 else ["all"]
        lost = [name for name in lost if not name.startswith("fixed-prompt")]
        if lost:
            wrong = wrong or f"these differ: {lost[:5]}"
        count.add("collect --workers 2, one killed", wrong=wrong, lost=bool(lost))


def _said(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _with_workers() -> None:
    import sys

    from anchorscope import cli

    real = cli.app

    def app() -> None:
        sys.argv += ["--workers", "2"]
        real()

    cli.app = app


def _fails_at(number: int) -> Hook:
    def hook() -> None:
        import torch

        from anchorscope.engine.lease import Lease

        real, calls = Lease.run, [0]

        def run(self, *args, **options):
            calls[0] += 1
            if calls[0] == number:
                raise torch.OutOfMemoryError("CUDA out of memory (made up)")
            return real(self, *args, **options)

        Lease.run = run

    return hook


def _limit(room: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
