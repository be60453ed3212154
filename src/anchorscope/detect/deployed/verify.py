"""Every file of a detector's folder against its checksum, and its fields against their rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from anchorscope.detect.deployed.card import model_card
from anchorscope.detect.deployed.saved import (
    ABOUT,
    CARD,
    FORMAT,
    WEIGHTS,
    load_trained,
    read_folder,
)
from anchorscope.detect.deployed.trained import Trained
from anchorscope.errors import UserError
from anchorscope.run_folder.verify import Checked

_AGAIN = "get the folder again, or train the detector again"


def verify_detector(folder: Path, *, deep: bool = False) -> Iterator[Checked]:
    """Description, weights and card of a detector; `deep` puts it together and tries it.

    What a loader refuses, a forged evaluation among it, is refused here in the same words.
    """
    try:
        about = read_folder(folder).about
    except UserError as error:
        yield _refused(ABOUT, error)
        return
    yield Checked(name=ABOUT, note=f"format {FORMAT}, checksum as written")
    yield Checked(name=WEIGHTS, note=f"the file that {ABOUT} was written for")
    if not deep:
        yield _card(folder, None)
        return
    try:
        trained = load_trained(folder)
    except UserError as error:
        yield _refused("fields", error)
        return
    number = about["evaluation"].get("auroc")
    yield Checked(name="fields", note=f"every field keeps its rule; held-out AUROC {number}")
    yield Checked(name="parts", note="they fit together: a made-up answer gets a probability")
    yield _card(folder, trained)


def _refused(name: str, error: UserError) -> Checked:
    """What the loader said, without the folder's name in front and its advice behind."""
    return Checked(name=name, wrong=str(error).split(": ", 1)[-1].split(". Get")[0], do=_AGAIN)


def _card(folder: Path, trained: Trained | None) -> Checked:
    """The model card; held against the one that the detector would get where that is known."""
    file = folder / CARD
    if not file.is_file():
        return Checked(name=CARD, wrong="it is missing", do="save the detector again")
    if trained is None:
        return Checked(name=CARD, note="not under a checksum: it may be edited")
    same = file.read_text(encoding="utf-8", errors="replace") == model_card(trained)
    return Checked(name=CARD, note="as it was written" if same else "edited since it was written")
