"""A run folder under a URL (s3://, gs://, memory://): worked on in a copy on this machine.

Every file goes to the URL when it is done, its marker after it. At the start what is there is
fetched. The copy lies under the cache folder and may be removed between runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError, user_path
from anchorscope.run_folder.whole import is_partial

# A path that pathlib read has lost a slash; one letter is a drive of Windows.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}([^/].*)")
_OWN = ("owner.json",)  # of this copy alone
RUN, _MARKERS, _STATES = "run.json", "markers/", "states/"


def cache_folder() -> Path:
    """What may be made again: $ANCHORSCOPE_CACHE, or the user's cache folder."""
    given = os.environ.get("ANCHORSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "anchorscope"


def remote_of(path: str | Path) -> Remote | None:
    """The place of a URL; None for a folder of this machine."""
    match = _URL.fullmatch(str(path))
    return None if match is None else Remote(f"{match[1]}://{match[2].rstrip('/')}")


def local_folder(path: str | Path, *, states: bool) -> Path:
    """The folder on this machine; what lies under a URL is fetched, `states` only where asked."""
    remote = remote_of(path)
    if remote is None:
        return user_path(path)
    if RUN not in remote.fetch(states=states):
        raise UserError(f"There is no run under {remote.url}. Give the URL of a finished run.")
    return remote.local


def _stays_inside(name: str) -> bool:
    """Whether a name of a store's stays in the folder it is copied to; a key may hold any text."""
    parts = name.replace("\\", "/").split("/")
    return bool(name) and ".." not in parts and "\x00" not in name and ":" not in parts[0]


class Remote:
    """A folder under a URL, and its copy here."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        with self._reached():
            self.fs, self._root = fsspec.core.url_to_fs(url)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", url)[-40:]
        digest = hashlib.sha256(url.encode()).hexdigest()[:12]
        self.local = cache_folder() / "runs" / f"{name}-{digest}"

    def begin(self) -> None:
        """The copy and the URL made alike: what a kill kept from being sent is sent.

        Where the URL holds no run, a copy that was left here is of one that somebody removed.
        """
        there = self.fetch()
        if RUN not in there:
            shutil.rmtree(self.local, ignore_errors=True)
        for name in [name for name in self._names() if name not in there]:
            self.send(name)

    def fetch(self, *, states: bool = True) -> frozenset[str]:
        """The names under the URL, the copy brought up to date: files first, then their markers."""
        sizes = self._sizes()
        wanted = [
            name
            for name, size in sizes.items()
            if name not in _OWN
            and (states or not name.removeprefix(_MARKERS).startswith(_STATES))
            and not self._same(name, size)
        ]
        markers = [name for name in wanted if name.startswith(_MARKERS)]
        self._get([name for name in wanted if not name.startswith(_MARKERS)])
        self._get(markers)
        return frozenset(sizes)

    def send(self, name: str) -> None:
        """Puts one file under the URL."""
        with self._reached():
            self.fs.put_file(str(self.local / name), self._at(name))

    def send_rest(self) -> None:
        """Puts every file under the URL that has no marker: probes, figures, the report."""
        for name in self._names():
            if not name.startswith(_MARKERS) and not self._marker(name).is_file():
                self.send(name)

    def put(self, name: str, about: dict[str, Any]) -> None:
        """Puts a small JSON under the URL, and nowhere else."""
        with self._reached():
            self.fs.pipe_file(self._at(name), json.dumps(about).encode())

    def get(self, name: str) -> tuple[dict[str, Any], float] | None:
        """A small JSON and its age in seconds; None where there is none."""
        with self._reached():
            self.fs.invalidate_cache()
            try:
                text = self.fs.cat_file(self._at(name))
                age = time.time() - self.fs.modified(self._at(name)).timestamp()
            except FileNotFoundError:
                return None
        return json.loads(text), age

    def remove(self, name: str) -> None:
        with self._reached():
            self.fs.rm_file(self._at(name))

    def _get(self, names: Sequence[str]) -> None:
        if names:
            targets = [self.local / name for name in names]
            for target in targets:
                target.parent.mkdir(parents=True, exist_ok=True)
            with self._reached():
                self.fs.get([self._at(name) for name in names], [str(of) for of in targets])

    def _same(self, name: str, size: int) -> bool:
        """Whether the copy has a file already; what has no marker may have changed."""
        file = self.local / name
        fixed = name.startswith(_MARKERS) or self._marker(name).is_file()
        return fixed and file.is_file() and file.stat().st_size == size

    def _sizes(self) -> dict[str, int]:
        """The bytes of every file under the URL, by name."""
        with self._reached():
            self.fs.invalidate_cache()
            try:
                there = self.fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        names = {n.removeprefix(self._root).lstrip("/"): of["size"] for n, of in there.items()}
        return {name: size for name, size in names.items() if _stays_inside(name)}

    def _names(self) -> list[str]:
        """The files of the copy, markers last."""
        files = [p for p in sorted(self.local.rglob("*")) if p.is_file()]
        own = [p for p in files if p.name not in _OWN and not is_partial(p.name)]
        names = [p.relative_to(self.local).as_posix() for p in own]
        return sorted(names, key=lambda name: name.startswith(_MARKERS))

    def _marker(self, name: str) -> Path:
        return self.local / _MARKERS / f"{name}.json"

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turns what the store's library says into a sentence."""
        try:
            yield
        except UserError:
            raise
        except ImportError as error:
            raise UserError(
                f"{self.url} needs a package that is not installed: {error}. For s3:// it is "
                "`pip install 'anchorscope[remote]'`."
            ) from error
        except Exception as error:  # each store has errors of its own
            told = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(
                f"{self.url} cannot be used: {told} What was finished is kept: run the same "
                "command again."
            ) from error
