"""Detectors on the hub: their files fetched, and a folder uploaded."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from anchorscope.detect.deployed.card import public
from anchorscope.detect.deployed.saved import (
    CARD,
    FILES,
    Stored,
    load_trained,
    read_folder,
    write_folder,
)
from anchorscope.errors import UserError, user_path


def fetch(place: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a detector: itself where it is one, else the files of a hub repository."""
    folder = user_path(place)
    name = str(place)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"There is no folder '{place}', and the hub gave no repository of that name: "
            f"{str(error).splitlines()[0]}"
        ) from error


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """The address of the repository, after the checked files of the folder are in it."""
    load_trained(folder)  # what could not be loaded again is not given to others
    stored = read_folder(folder)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

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
    except (HfHubHTTPError, OSError) as error:
        raise UserError(
            f"'{repository}' could not be written: {str(error).splitlines()[0]} Log in with "
            "`hf auth login`, and give org/name."
        ) from error
    return f"{api.endpoint}/{repository}"
