"""A command that dies, finds the disk full or broken, or finds damaged files: nothing is lost.

Each ends with the same command given once more, which leaves every byte of an undisturbed one.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kit.power import Died, watching
from kit.rivers import a_file_of_each_kind, collect_here, contents, rivers

from anchorscope.errors import UserError
from anchorscope.run_folder.manifest import verify_run

SHARES = [n / 6 for n in range(6)]  # of the calls that change the folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, its questions, and what an undisturbed command made of them: `whole`."""
    place = rivers(tmp_path_factory.mktemp("faults"))
    collect_here(place, "whole")
    return place


@pytest.fixture(scope="module")
def calls(place: Path) -> int:
    """How many calls of a command change the folder."""
    numbers: list[int] = []
    with watching(lambda name, number, args: numbers.append(number)):
        collect_here(place, "counted")
    return len(numbers)


def require_continued(place: Path, out: str) -> None:
    """Fail unless the same command, undisturbed, leaves the files of an undisturbed one."""
    collect_here(place, out)
    left = contents(place / out)
    # Unfinished files of a process that lives, as this one does, are not removed.
    whole = {name: data for name, data in left.items() if not name.endswith(".partial")}
    assert whole == contents(place / "whole")


@pytest.mark.parametrize("share", SHARES)
def test_a_command_that_died_at_a_call_continues_to_the_same_bytes(place, calls, share):
    out = f"died-{share}"
    last = 1 + int(share * calls)

    def die(name: str, number: int, args: object) -> None:
        if number >= last:  # what a `finally` would do is not done either
            raise Died

    with suppress(Died), watching(die):
        collect_here(place, out)
    require_continued(place, out)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("share", SHARES[::2])
def test_a_full_or_broken_disk_is_one_sentence_and_the_command_continues(
    place, calls, error, share
):
    """Every call that takes room is refused from some one on."""
    out, code, last = f"{error}-{share}", getattr(errno, error), 1 + int(share * calls)

    def refuse(name: str, number: int, args: object) -> None:
        if number >= last and name in ("fsync", "link", "mkdir"):
            raise OSError(code, os.strerror(code))

    with pytest.raises(UserError, match=os.strerror(code)), watching(refuse):
        collect_here(place, out)
    require_continued(place, out)


def flipped(data: bytes, draw: random.Random) -> bytes:
    at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "cut": lambda data, draw: data[: draw.randrange(len(data))],
    "emptied": lambda data, draw: b"",
    "flipped": flipped,
    "zeroed": lambda data, draw: bytes(len(data)),
    "noise": lambda data, draw: draw.randbytes(len(data)),
    "removed": lambda data, draw: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_by_verify_and_made_again(place, damage):
    """Files of six kinds in a copy of the folder; run.json is refused until it is restored."""
    draw, copy = random.Random(damage), place / f"{damage}-copy"
    for name in draw.sample(a_file_of_each_kind(place / "whole", draw), 6):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place / "whole", copy)
        file = copy / name
        before = file.read_bytes()
        after = DAMAGES[damage](before, draw)
        file.unlink() if after is None else file.write_bytes(after)
        wrong = {checked.name for checked in verify_run(copy) if not checked.ok}
        assert any(name in (known, f"markers/{known}.json") for known in wrong), (name, wrong)
        if name == "run.json":
            if after is not None:
                with pytest.raises(UserError, match="is damaged"):
                    collect_here(place, copy.name)
            file.write_bytes(before)
        require_continued(place, copy.name)
