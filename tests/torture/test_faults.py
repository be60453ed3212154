"""Real commands killed, refused room, short of memory, and with damaged files: nothing is lost.

Run by `make torture` alone, in a process without threads: each trial forks. `TORTURE_SEED` draws
other moments, calls and bits.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.rivers import a_file_of_each_kind

from torture.commands import Place, refuse, watch_calls

pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="trials are forked"),
]
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
Damage = Callable[[bytes, random.Random], bytes | None]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = Place()
    yield place
    shutil.rmtree(place.folder, ignore_errors=True)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{os.environ.get('TORTURE_SEED', '0')} {request.node.name}")


def trials(**counts: int) -> pytest.MarkDecorator:
    """So many trials of each job, each with its share [0, 1) of the command's length."""
    rows = [(job, n / count) for job, count in counts.items() for n in range(count)]
    return pytest.mark.parametrize(("job", "share"), rows)


@trials(collect=20, run=15, train=4)
def test_resume_after_three_kills_is_byte_equal(place, draw, job, share):
    """SIGKILL, SIGINT or SIGTERM, the first at a moment in this share of the command's time."""
    place.whole(job)
    out = place.new()
    for moment in (share + 0.05 * draw.random(), draw.random(), draw.random()):
        command, number = place.begin(job, out), draw.choice(SIGNALS)
        ended = command.wait(moment * place.seconds[job])
        if ended is None:
            os.kill(command.pid, number)
            ended = command.end()
        # Ctrl-C has an exit code of its own; a command may also have been done by then.
        interrupted = number == signal.SIGINT and ended.code == 130
        assert ended.code in (0, -number) or interrupted, (ended.code, ended.output[-600:])
    place.require_continued(job, out)


@trials(collect=40, run=16, train=12)
def test_resume_after_a_kill_at_a_file_system_call_is_byte_equal(place, draw, job, share):
    place.whole(job)
    number = 1 + int((share + 0.01) * place.calls[job])
    when, out = draw.choice(("before", "after")), place.new()

    def die(_: str, at: int) -> None:
        if at == number:
            os.kill(os.getpid(), signal.SIGKILL)

    ended = place.run(job, out, lambda: watch_calls(**{when: die}))
    assert ended.code in (0, -signal.SIGKILL), ended.output[-600:]
    place.require_continued(job, out)


@trials(collect=10, train=4)
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EACCES"])
def test_a_full_or_broken_disk_is_one_sentence_and_the_command_continues(place, draw, job, share,
                                                                         error):  # fmt: skip
    """A full disk refuses every call from some one on, a broken one a single call."""
    place.whole(job)
    number, out, full = 1 + int((share + 0.05) * place.calls[job]), place.new(), error == "ENOSPC"
    fault = refuse(number, error=getattr(errno, error), ever_after=full)
    place.run(job, out, lambda: watch_calls(before=fault)).require_refusal()
    place.require_continued(job, out)


def _flip(data: bytes, draw: random.Random) -> bytes:
    at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def _zero_page(data: bytes, draw: random.Random) -> bytes:
    """A page of zeros, as a disk that lost power may leave it."""
    at = draw.randrange(len(data))
    return data[:at] + bytes(min(4096, len(data) - at)) + data[at + 4096 :]


DAMAGES: dict[str, Damage] = {
    "cut": lambda data, draw: data[: draw.randrange(len(data))],
    "emptied": lambda data, draw: b"",
    "flipped": _flip,
    "zeroed": _zero_page,
    "noise": lambda data, draw: draw.randbytes(len(data)),
    "removed": lambda data, draw: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("job", ["collect", "run", "train"])
def test_a_damaged_file_is_named_by_verify_and_made_again(place, draw, job, damage):
    """Files of six kinds in a finished folder, one after the other."""
    names = a_file_of_each_kind(place.whole(job), draw)
    for name in draw.sample(names, min(6, len(names))):
        out = Path(shutil.copytree(place.whole(job), place.new()))
        file = out / name
        before = file.read_bytes()
        after = DAMAGES[damage](before, draw) if before else None
        file.unlink() if after is None else file.write_bytes(after)
        if after == before:
            continue
        if name != "README.md":  # a card may be edited
            verified = place.verify(out)
            assert verified.code == 1 and not verified.traceback, (name, verified.output[-500:])
            assert Path(name).name.removesuffix(".json") in verified.output, name
        if name == "run.json" and after is not None:  # refused until a backup is in its place
            refused = place.run(job, out)
            assert refused.code == 2 and not refused.traceback, refused.output[-500:]
        if name == "run.json":
            file.write_bytes(before)
        place.require_continued(job, out)
