"""Detectors on the hub: their files fetched, and a folder uploaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anchorscope.detect.deployed.card import public
from anchorscope.detect.deployed.saved import (
    CARD,
    FILES,
    Stored,
    load_trained,
    read_folder,
    write_folder,
)
from anchorscope.detect.deployed.trained import Trained
from anchorscope.errors import UserError, in_a_line, user_path


def trained_at(place: str | Path, *, revision: str | None = None) -> Trained:
    """The detector in a folder or in a repository of the hub."""
    folder = fetch(place, revision=revision)
    try:
        return load_trained(folder)
    except UserError as refused:
        if folder == user_path(place):
            raise
        # What came damaged lies in the hub's cache, and would be refused for ever.
        with TemporaryDirectory() as cache:
            try:
                trained = load_trained(fetch(place, revision=revision, cache=cache))
            except UserError:
                raise refused from None
        if folder.parent.name == "snapshots":
            shutil.rmtree(folder.parents[1], ignore_errors=True)
        return trained


def fetch(place: str | Path, *, revision: str | None = None, cache: str | None = None) -> Path:
    """The folder of a detector: itself where it is one, else the files of a hub repository.

    They lie in the hub's cache on this machine, or in another one.
    """
    folder = user_path(place)
    name = str(place)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return folder
    from huggingface_hub import snapshot_download

    how: Any = {"revision": revision, "cache_dir": cache, "allow_patterns": list(FILES)}
    try:
        try:
            return Path(snapshot_download(name, **how))
        except OSError as error:
            if "Consistency check failed" not in str(error):
                raise
            # A file that broke off is gone on with, and whatever was wrong with it stays in it.
            return Path(snapshot_download(name, **how, force_download=True))
    except Exception as error:  # an answer that makes no sense ends in any error of the library's
        raise UserError(
            f"There is no folder '{place}', and the hub gave no repository of that name: "
            f"{in_a_line(error)}"
        ) from error


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """The address of the repository, after the checked files of the folder are in it."""
    load_trained(folder)  # what could not be loaded again is not given to others
    stored = read_folder(folder)
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
