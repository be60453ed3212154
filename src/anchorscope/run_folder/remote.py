"""Keep a run folder under a URL (s3://, gs://, memory://), with a local copy to work on.

Every finished file is uploaded, then its marker. At the start, existing files are downloaded. The
copy is under the cache folder and may be removed between runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError, in_a_line, user_path
from anchorscope.run_folder.disk import create_atomic, is_partial
from anchorscope.run_folder.manifest import (
    LOCK,
    MARKERS,
    OWNER,
    RUN,
    STATES,
    Busy,
    marker_name,
    this_owner,
)

# pathlib turns // into /; a single letter would be a Windows drive.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}([^/].*)")


def cache_folder() -> Path:
    """The cache folder: $ANCHORSCOPE_CACHE, or `anchorscope` in the user's cache folder."""
    chosen = os.environ.get("ANCHORSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "anchorscope"


def remote_of(path: str | Path) -> Remote | None:
    """The `Remote` of a URL; None for a local path."""
    match = _URL.fullmatch(str(path))
    return None if match is None else Remote(f"{match[1]}://{match[2].rstrip('/')}")


def local_folder(path: str | Path, *, states: bool) -> Path:
    """The local folder of a path or URL; a URL's files are downloaded, states only if wanted."""
    remote = remote_of(path)
    if remote is None:
        return user_path(path)
    if RUN not in remote.fetch(states=states):
        raise UserError(f"There is no run under {remote.url}. Give the URL of a finished run.")
    return remote.local


class Remote:
    """A folder under a URL, and its local copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._reached():
            from fsspec.core import url_to_fs
            from fsspec.implementations.dirfs import DirFileSystem

            fs, root = url_to_fs(url)
            self._fs = DirFileSystem(root, fs)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", url)[-40:]
        digest = hashlib.sha256(url.encode()).hexdigest()[:12]
        self.local = cache_folder() / "runs" / f"{name}-{digest}"

    def begin(self) -> None:
        """Download the files under the URL, and upload those that a killed run did not.

        Where the URL holds no run, the run was removed there, and the local copy is removed too.
        """
        there = self.fetch()
        if RUN not in there:
            shutil.rmtree(self.local, ignore_errors=True)
        files = [file for file in self.local.rglob("*") if file.is_file()]
        own = [f for f in files if f.name not in (OWNER, LOCK) and not is_partial(f.name)]
        for name in sorted((f.relative_to(self.local).as_posix() for f in own), key=_is_marker):
            if name not in there:
                self.send(name)

    def fetch(self, *, states: bool = True) -> set[str]:
        """Download new files, markers after their files; return the names of all under the URL."""
        with self._reached():
            self._fs.invalidate_cache()
            try:
                found: Any = self._fs.find("", detail=True)
            except FileNotFoundError:
                found = {}
            sizes = {name: facts["size"] for name, facts in found.items() if _stays_inside(name)}
            wanted = [
                name
                for name, size in sizes.items()
                if name not in (OWNER, LOCK)
                and (states or f"/{STATES}/" not in f"/{name}")
                and not self._is_copied(name, size)
            ]
            for markers in (False, True):
                if names := [name for name in wanted if _is_marker(name) == markers]:
                    self._fs.get(names, [str(self.local / name) for name in names])
        return set(sizes)

    def send(self, name: str) -> None:
        """Upload one file of the local copy."""
        with self._reached():
            self._fs.put_file(str(self.local / name), name)

    def remove(self, name: str) -> None:
        """Remove a file under the URL."""
        with self._reached():
            self._fs.rm_file(name)

    def remove_folder(self, name: str) -> None:
        """Remove a folder and all files in it under the URL."""
        with self._reached():
            self._fs.rm(name, recursive=True)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Own the URL until the block ends; raise `Busy` where another copy's process does.

        The storage creates owner.json only where there is none. If an existing one was made from
        this copy, its process was killed, since the copy has a lock of its own.
        """
        mark = self.local.with_name(f"{self.local.name}.id")
        create_atomic(mark, uuid.uuid4().hex.encode())
        claim = this_owner() | {"copy": mark.read_text()}
        with self._reached():
            try:
                self._fs.pipe_file(OWNER, json.dumps(claim).encode(), mode="create")
            except FileExistsError:
                other = json.loads(self._fs.cat_file(OWNER))
                if other.get("copy") != claim["copy"]:
                    advice = f" Where that process was killed, remove {self.url}/{OWNER} first."
                    raise Busy.by(self.url, other, advice) from None
        try:
            yield
        finally:
            self.remove(OWNER)

    def _is_copied(self, name: str, size: int) -> bool:
        """Whether the local copy has a file already; one without a marker may have changed."""
        file = self.local / name
        fixed = _is_marker(name) or (self.local / marker_name(name)).is_file()
        return fixed and file.is_file() and file.stat().st_size == size

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn an error of the storage library into a UserError."""
        try:
            yield
        except UserError:
            raise
        except ImportError as error:
            raise UserError(
                f"{self.url} needs a package that is not installed: {error}. For s3:// it is "
                "`pip install 'anchorscope[remote]'`."
            ) from error
        except Exception as error:  # each storage library has errors of its own
            raise UserError(
                f"{self.url} cannot be used: {in_a_line(error)} What was finished is kept: run the "
                "same command again."
            ) from error


def _is_marker(name: str) -> bool:
    return name.startswith(f"{MARKERS}/")


def _stays_inside(name: str) -> bool:
    """Whether a remote name stays inside the local folder; an object's key may be any text."""
    parts = name.replace("\\", "/").split("/")
    return bool(name) and ".." not in parts and "\x00" not in name and ":" not in parts[0]
