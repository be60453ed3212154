"""Check a detector's folder: every file against its checksum, every field against its rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from anchorscope.detect.deployed.parts import load_parts
from anchorscope.detect.deployed.saved import ABOUT, CARD, FORMAT, WEIGHTS, read_folder
from anchorscope.errors import UserError
from anchorscope.run_folder.manifest import Checked

_AGAIN = "get the folder again, or train the detector again"


def verify_detector(folder: Path, *, deep: bool = False) -> Iterator[Checked]:
    """Description, weights and card of a detector; `deep` loads it and tries it.

    What a loader refuses, a forged evaluation among it, is refused here in the same words.
    """
    try:
        about = read_folder(folder).about
    except UserError as error:
        yield _refused(ABOUT, error)
        return
    yield Checked(name=ABOUT, note=f"format {FORMAT}, checksum as written")
    yield Checked(name=WEIGHTS, note=f"the file that {ABOUT} was written for")
    if deep:
        try:
            load_parts(folder)
        except UserError as error:
            yield _refused("fields", error)
            return
        number = about["evaluation"].get("auroc")
        yield Checked(name="fields", note=f"every field keeps its rule; held-out AUROC {number}")
        yield Checked(name="parts", note="they fit together: a made-up answer gets a probability")
    if not (folder / CARD).is_file():
        yield Checked(name=CARD, wrong="it is missing", do="save the detector again")
    else:
        yield Checked(name=CARD, note="not under a checksum: it may be edited")


def _refused(name: str, error: UserError) -> Checked:
    """The loader's reason, without the folder's name before it and the advice after it."""
    return Checked(name=name, wrong=str(error).split(": ", 1)[-1].split(". Get")[0], do=_AGAIN)
