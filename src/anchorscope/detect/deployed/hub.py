"""Detectors on the hub: fetch their files, and upload a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from anchorscope.detect.deployed.card import public
from anchorscope.detect.deployed.parts import load_parts
from anchorscope.detect.deployed.saved import CARD, FILES, Stored, write_folder
from anchorscope.errors import UserError, in_a_line, user_path

Read = TypeVar("Read")


def read_from(
    place: str | Path, read: Callable[[Path], Read], *, revision: str | None = None
) -> Read:
    """What `read` makes of a folder or of a hub repository; fetched again where it is damaged."""
    folder = fetch(place, revision=revision)
    try:
        return read(folder)
    except UserError as refused:
        if folder == user_path(place):
            raise
        # A damaged download stays in the hub's cache, and every later call would refuse it.
        with TemporaryDirectory() as cache:
            try:
                found = read(fetch(place, revision=revision, cache=cache))
            except UserError:
                raise refused from None
        if folder.parent.name == "snapshots":
            shutil.rmtree(folder.parents[1], ignore_errors=True)
        return found


def fetch(place: str | Path, *, revision: str | None = None, cache: str | None = None) -> Path:
    """The folder of a detector: itself where it is one, else the files of a hub repository.

    They are kept in the hub's cache on this machine, or in another one.
    """
    folder = user_path(place)
    name = str(place)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return folder
    from huggingface_hub import snapshot_download

    def download(force: bool) -> Path:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=cache,
                allow_patterns=list(FILES),
                force_download=force,
            )
        )

    try:
        try:
            return download(force=False)
        except OSError as error:
            if "Consistency check failed" not in str(error):
                raise
            # The hub's library continues a file that broke off, with whatever is wrong in it.
            return download(force=True)
    except Exception as error:  # an answer that makes no sense ends in any error of the library's
        raise UserError(
            f"There is no folder '{place}', and the hub gave no repository of that name: "
            f"{in_a_line(error)}"
        ) from error


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """The address of the repository, after the checked files of the folder are in it."""
    stored, _ = load_parts(folder)  # what could not be loaded again is not given to others
    from huggingface_hub import HfApi

    api = HfApi()
    about = stored.about | {"model": public(stored.about["model"])}
    card = (folder / CARD).read_text(encoding="utf-8")
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        with TemporaryDirectory() as copy:
            write_folder(Path(copy), Stored(stored.tensors, about), card)
            api.upload_folder(
                repo_id=repository,
                folder_path=copy,
                allow_patterns=list(FILES),
                commit_message="A detector of wrong answers",
            )
    except Exception as error:  # as above
        raise UserError(
            f"'{repository}' could not be written: {in_a_line(error)} Log in with "
            "`hf auth login`, and give org/name."
        ) from error
    return f"{api.endpoint}/{repository}"
