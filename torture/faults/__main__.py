"""`python -m torture.faults [--short] [--seed N] [--only NAME,...]`: the table of all faults."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence

from torture.faults import damage, disk, kills, memory, owners
from torture.faults.place import Place
from torture.faults.tally import Tally

Trials = Callable[[Place, Tally, random.Random], None]


def moments(place: Place, tally: Tally, draw: random.Random) -> None:
    for job, count_of in {"collect": 60, "run": 45, "train": 12, "study": 9}.items():
        with tally.of(f"`{job}` killed at random moments (SIGKILL, SIGINT, SIGTERM)") as count:
            kills.at_moments(place, count, job, kills=count_of, draw=draw)


def calls(place: Place, tally: Tally, draw: random.Random) -> None:
    for job, count_of in {"collect": 60, "run": 24, "train": 24}.items():
        with tally.of(f"`{job}` killed before or after a call of the file system") as count:
            kills.at_calls(place, count, job, kills=count_of, draw=draw)


def damages(place: Place, tally: Tally, draw: random.Random) -> None:
    for job, share in {"collect": 0.75, "run": 0.3}.items():
        with tally.of(f"a file of a `{job}` folder torn, flipped, emptied, removed") as count:
            damage.files_of_a_run(place, count, job, draw, share)
    with tally.of("a file of a detector's folder torn, flipped, emptied, removed") as count:
        damage.files_of_a_detector(place, count, draw, 1.0)


def disks(place: Place, tally: Tally, draw: random.Random) -> None:
    with tally.of("the disk is full from some call on (ENOSPC, EDQUOT)") as count:
        disk.full_from_a_call(place, count, "collect", draw, 12)
        disk.full_from_a_call(place, count, "train", draw, 4)
    with tally.of("a call of the disk fails once (EIO, ESTALE, EACCES)") as count:
        disk.broken_at_a_call(place, count, "collect", draw, 12)
    with tally.of("a real small disk fills up and grows") as count:
        disk.small_disk(place, count, "collect", draw, 8)
        disk.small_disk(place, count, "run", draw, 3)
    with tally.of("a folder that may not be written to") as count:
        disk.read_only(place, count, "collect")


def folders(place: Place, tally: Tally, draw: random.Random) -> None:
    with tally.of("the folder is moved between kill and continuation") as count:
        owners.moved(place, count, "collect", draw, 6)
    with tally.of("the clock jumps, by seconds to years") as count:
        owners.clock_jumped(place, count, "collect", draw, 6)
    with tally.of("two commands for one folder, clocks apart") as count:
        owners.two_at_once(place, count, "collect", draw, 6)
    with tally.of("`owner.json` torn, forged, or of a process long gone") as count:
        owners.torn_owner(place, count, "collect")


def memories(place: Place, tally: Tally, draw: random.Random) -> None:
    with tally.of("memory runs out in some pass of the model") as count:
        memory.out_of_memory(place, count, "collect", draw, 12)
    with tally.of("the process may have little memory (RLIMIT_AS)") as count:
        memory.little_memory(place, count, "collect", draw, 8)
    with tally.of("one of two workers is killed") as count:
        memory.lost_worker(place, count, trials=2)


def short(place: Place, tally: Tally, draw: random.Random) -> None:
    """A few that cost little: what the ordinary tests run."""
    with tally.of("`collect` killed before or after a call of the file system") as count:
        kills.at_calls(place, count, "collect", kills=1, draw=draw)
    with tally.of("the disk is full from some call on") as count:
        disk.full_from_a_call(place, count, "collect", draw, 1)


FAULTS: dict[str, Trials] = {
    "moments": moments,
    "calls": calls,
    "damage": damages,
    "disk": disks,
    "owners": folders,
    "memory": memories,
}


def main(argv: Sequence[str] | None = None) -> dict[str, int]:
    """How many faults were tried and survived, and how often data was lost."""
    parser = argparse.ArgumentParser(prog="python -m torture.faults")
    parser.add_argument("--short", action="store_true", help="a handful, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="of moments, places and bits")
    parser.add_argument("--only", default=",".join(FAULTS), help="kinds, joined by commas")
    told = "of each kind at most: what was tried by then is counted"
    parser.add_argument("--seconds", type=float, default=math.inf, help=told)
    asked = parser.parse_args(argv)
    tally = Tally(most=asked.seconds)
    trials = {"short": short} if asked.short else {n: FAULTS[n] for n in asked.only.split(",")}
    with Place() as place:
        for name, tried in trials.items():
            tried(place, tally, random.Random(f"{asked.seed} {name}"))
    print(tally.table())
    for failure in tally.failures:
        print(f"\n{failure}")
    print(json.dumps(tally.sums()))
    return tally.sums()


if __name__ == "__main__":
    sums = main()
    sys.exit(sums["survived"] < sums["faults tried"] or sums["data lost"] > 0)
