"""Torn, emptied, cut, flipped and missing files: each must be found, named, and made again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from torture.faults.place import Place
from torture.faults.tally import Count

Damage = Callable[[bytes, random.Random], bytes | None]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def _flipped(data: bytes, draw: random.Random) -> bytes:
    """One bit is another."""
    at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def _zeros(data: bytes, draw: random.Random) -> bytes:
    """A page of zeros, as a disk that lost power may leave it."""
    at = draw.randrange(len(data))
    return data[:at] + bytes(min(4096, len(data) - at)) + data[at + 4096 :]


DAMAGES: dict[str, Damage] = {
    "cut": _cut,
    "emptied": lambda data, draw: b"",
    "a bit flipped": _flipped,
    "a page zeroed": _zeros,
    "noise": lambda data, draw: draw.randbytes(len(data)),
    "removed": lambda data, draw: None,
}


def kinds_of_file(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder by kind: by the folder they lie in, or are of, and their ending."""
    kinds: dict[str, list[Path]] = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        place = file.relative_to(folder)
        of = "/".join(place.parts[:2]) if place.parts[0] == "markers" else place.parts[0]
        kind = f"{of}/*{place.suffix}" if len(place.parts) > 1 else place.name
        kinds.setdefault(kind, []).append(file)
    return kinds


def files_of_a_run(place: Place, count: Count, job: str, draw: random.Random, share: float) -> None:
    """Damages a file of every kind in a finished folder, looks for it, and makes it again."""
    for kind, damage in _drawn(kinds_of_file(place.whole(job)), draw, share):
        count.go_on()
        out = place.copy(job)
        file = draw.choice(kinds_of_file(out)[kind])
        name = file.relative_to(out).as_posix()
        if not _damaged(file, damage, draw):
            continue
        trial, wrong = f"{job}, {name} {damage}", _found(place, out, name)
        ended = place.run(job, out)
        if name == "run.json" and ended.code == 2 and not ended.traceback:  # a backup helps
            file.write_bytes((place.whole(job) / name).read_bytes())
            ended = place.run(job, out)
        if ended.code != 0 or ended.traceback:
            wrong = wrong or f"the command ended with {ended.code}: {ended.said[-500:]}"
        lost = place.different(job, out) if ended.code == 0 else ["all"]
        if lost:
            wrong = wrong or f"these differ: {', '.join(lost[:5])}"
        count.add(trial, wrong=wrong, lost=bool(lost))


def files_of_a_detector(place: Place, count: Count, draw: random.Random, share: float) -> None:
    """Damages a detector's files: it is refused by name, and training it again mends it."""
    for kind, damage in _drawn(kinds_of_file(place.whole("train")), draw, share):
        count.go_on()
        out = place.copy("train")
        file = kinds_of_file(out)[kind][0]
        if not _damaged(file, damage, draw):
            continue
        wrong = "" if file.name == "README.md" else _found(place, out, file.name)
        ended = place.run("train", out)
        lost = place.different("train", out) if ended.code == 0 else ["all"]
        if lost or ended.traceback:
            wrong = wrong or f"trained again, it ended with {ended.code}: {ended.said[-500:]}"
        count.add(f"{file.name} {damage}", wrong=wrong, lost=bool(lost))


def _drawn(
    kinds: dict[str, list[Path]], draw: random.Random, share: float
) -> Iterator[tuple[str, str]]:
    """Every kind of file with every damage, or a share of these."""
    pairs = [(kind, damage) for kind in kinds for damage in DAMAGES]
    yield from sorted(draw.sample(pairs, max(1, round(len(pairs) * share))))


def _damaged(file: Path, damage: str, draw: random.Random) -> bool:
    """Damages the file; whether anything changed."""
    before = file.read_bytes()
    after = DAMAGES[damage](before, draw) if before else None
    if after is None:
        file.unlink()
    else:
        file.write_bytes(after)
    return after != before


def _found(place: Place, out: Path, name: str) -> str:
    """What was wrong with how `verify` looked at a damaged folder."""
    ended = place.type("verify", out)
    if ended.traceback or ended.code not in (0, 1):
        return f"verify ended with {ended.code}: {ended.said[-500:]}"
    if ended.code == 0:
        return "verify found nothing"
    if ended.code == 1 and Path(name).name.removesuffix(".json") not in ended.said:
        return f"verify did not name it: {ended.said[-300:]}"
    return ""
