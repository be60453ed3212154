"""`python -m torture.faults [--short] [--seed N] [--only NAME,...]`: the table of all faults."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence

from torture.faults import disk, memory, owners
from torture.faults.damage import files_of_a_detector, files_of_a_run
from torture.faults.kills import at_calls, at_moments
from torture.faults.place import Place
from torture.faults.tally import Tally

Trials = Callable[[Place, Tally, random.Random, bool], None]


def kills_at_moments(place: Place, tally: Tally, draw: random.Random, short: bool) -> None:
    numbers = {"collect": 3} if short else {"collect": 45, "run": 60, "train": 12, "study": 9}
    for job, kills in numbers.items():
        with tally.of(f"`{job}` killed at a random moment (SIGKILL, SIGINT, SIGTERM)") as count:
            at_moments(place, count, job, kills=kills, draw=draw)


def kills_at_calls(place: Place, tally: Tally, draw: random.Random, short: bool) -> None:
    numbers = {"collect": 4, "train": 2} if short else {"collect": 60, "run": 40, "train": 30}
    for job, kills in numbers.items():
        with tally.of(f"`{job}` killed before or after a call of the file system") as count:
            at_calls(place, count, job, kills=kills, draw=draw, after=None)


def damaged_files(place: Place, tally: Tally, draw: random.Random, short: bool) -> None:
    for job, share in {"collect": 0.05 if short else 1.0, "run": 0.0 if short else 0.35}.items():
        if share:
            with tally.of(f"a file of a `{job}` folder damaged: every kind of file") as count:
                files_of_a_run(place, count, job, draw, share)
    with tally.of("a file of a detector's folder damaged") as count:
        files_of_a_detector(place, count, draw, 0.1 if short else 1.0)


def full_and_broken_disks(place: Place, tally: Tally, draw: random.Random, short: bool) -> None:
    trials = {"trials": 1 if short else 12, "draw": draw}
    with tally.of("the disk is full from some call on (ENOSPC, EDQUOT)") as count:
        disk.full_from_a_call(place, count, "collect", **trials)
        disk.full_from_a_call(place, count, "train", **trials)
    with tally.of("a call of the disk fails once (EIO, ESTALE, EACCES)") as count:
        disk.broken_at_a_call(place, count, "collect", **trials)
    if short:
        return
    with tally.of("a real small disk fills up and grows") as count:
        disk.small_disk(place, count, "collect", **trials)
        disk.small_disk(place, count, "run", trials=4, draw=draw)
    with tally.of("a folder that may not be written to, not as root") as count:
        disk.read_only(place, count, "collect")


def folders_and_owners(place: Place, tally: Tally, draw: random.Random, short: bool) -> None:
    trials = 1 if short else 6
    with tally.of("the folder is moved between kill and continuation") as count:
        owners.moved(place, count, "collect", trials=trials, draw=draw)
    with tally.of("the clock jumps by seconds to years") as count:
        owners.clock_jumped(place, count, "collect", draw, trials)
    with tally.of("two commands for one folder, clocks apart") as count:
        owners.two_at_once(place, count, "collect", draw, 2 if short else 8)
    if not short:
        with tally.of("owner.json torn, forged, or of a process long gone") as count:
            owners.torn_owner(place, count, "collect")


def little_memory(place: Place, tally: Tally, draw: random.Random, short: bool) -> None:
    trials = 1 if short else 12
    with tally.of("memory runs out in any pass of the model") as count:
        memory.out_of_memory(place, count, "collect", trials=trials, draw=draw)
    if short:
        return
    with tally.of("the process may have little memory (RLIMIT_AS)") as count:
        memory.little_memory(place, count, "collect", trials=8, draw=draw)
    with tally.of("a worker of two is killed") as count:
        memory.lost_worker(place, count, trials=2)


FAULTS: dict[str, Trials] = {
    "moments": kills_at_moments,
    "calls": kills_at_calls,
    "damage": damaged_files,
    "disk": full_and_broken_disks,
    "owners": folders_and_owners,
    "memory": little_memory,
}


def main(argv: Sequence[str] | None = None) -> dict[str, int]:
    """How many faults were tried and survived, and how often data was lost."""
    parser = argparse.ArgumentParser(prog="python -m torture.faults")
    parser.add_argument("--short", action="store_true", help="a few of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of moments, places and bits")
    parser.add_argument("--only", default=",".join(FAULTS), help="kinds, joined by commas")
    asked, tally = parser.parse_args(argv), Tally()
    with Place() as place:
        for name in asked.only.split(","):
            FAULTS[name](place, tally, random.Random(f"{asked.seed} {name}"), asked.short)
    print(tally.table())
    for failure in tally.failures:
        print(f"\n{failure}")
    print(json.dumps(tally.sums()))
    return tally.sums()


if __name__ == "__main__":
    sums = main()
    sys.exit(sums["survived"] < sums["faults tried"] or sums["data lost"] > 0)
