"""Simulate power cuts: changes that were not synced are lost, torn, or kept by chance.

A file's bytes are safe once it was synced, a name once its folder was. Within `Disk.dying`, the
calls that change a folder are counted, and the process can be made to die before any of them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

Content = bytes | None  # of a file; None is a folder
WATCHED = ((os, "fsync"), (os, "link"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"))


class Died(BaseException):
    """The simulated death of the process: even the calls in a `finally` change nothing more."""


@contextmanager
def watching(before: Callable[[str, int, Sequence[Any]], object]) -> Iterator[None]:
    """Tell `before` each call that changes a folder: its name, its number from 1, its arguments.

    Nothing is really synced, which takes long.
    """
    lock, numbers = threading.Lock(), itertools.count(1)

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            with lock:
                number = next(numbers)
            before(name, number, args)
            return None if name == "fsync" else real(*args, **options)

        return called

    with ExitStack() as stack:
        for place, name in WATCHED:
            real = getattr(place, name)
            stack.callback(setattr, place, name, real)
            setattr(place, name, watched(name, real))
        yield


class Disk:
    """Track what a folder would hold after a power cut."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.synced: dict[int, bytes] = {}  # by inode
        self.safe: dict[Path, dict[str, Content]] = {}  # folder: what its names hold
        self.settle()

    def settle(self) -> None:
        """Mark everything in the folder as synced."""
        self.synced, self.safe = {}, {}
        for folder in (self.root, *filter(Path.is_dir, self.root.rglob("*"))):
            for file in filter(Path.is_file, folder.iterdir()):
                self.synced[file.stat().st_ino] = file.read_bytes()
            self.safe[folder] = self._now(folder)

    @contextmanager
    def dying(self, call: int | None = None) -> Iterator[None]:
        """Count the calls that change the folder in the block; die before call number `call`."""

        def before(name: str, number: int, args: Sequence[Any]) -> None:
            if call is not None and number >= call:
                raise Died
            if name == "fsync":
                self._sync(args[0])

        with watching(before):
            yield

    def _sync(self, handle: int) -> None:
        """Mark a file's bytes or a folder's names as synced, by file descriptor."""
        facts = os.fstat(handle)
        for path in (self.root, *self.root.rglob("*")):
            if path.stat().st_ino == facts.st_ino:
                if stat.S_ISDIR(facts.st_mode):
                    self.safe[path] = self._now(path)
                else:
                    self.synced[facts.st_ino] = path.read_bytes()

    def _now(self, folder: Path) -> dict[str, Content]:
        """The content by name of a folder after a power cut, if the names are kept."""
        return {p.name: None if p.is_dir() else self._bytes(p) for p in folder.iterdir()}

    def _bytes(self, file: Path) -> bytes:
        """A file's bytes after a power cut: only the first half if they were not synced."""
        data = file.read_bytes()
        return data if self.synced.get(file.stat().st_ino) == data else data[: len(data) // 2]

    def lose_power(self, lucky: Callable[[], bool]) -> None:
        """Restore the folder to what was synced; keep an unsynced change if `lucky()`."""
        left = dict(self._left(self.root, lucky))
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path, content in left.items():
            path.mkdir() if content is None else path.write_bytes(content)
        self.settle()

    def _left(self, folder: Path, lucky: Callable[[], bool]) -> Iterator[tuple[Path, Content]]:
        """Every path under a folder after a power cut, folders before their contents."""
        now, safe = self._now(folder), self.safe.get(folder, {})
        for name in sorted({*now, *safe}):
            same = name in now and name in safe and now[name] == safe[name]
            held = now if same or lucky() else safe
            if name in held:
                yield folder / name, held[name]
                if held[name] is None:
                    yield from self._left(folder / name, lucky)
