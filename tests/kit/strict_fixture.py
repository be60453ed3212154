"""The claims of a synthetic run folder, in it."""

from __future__ import annotations

from pathlib import Path

from anchorscope.run_folder.view import RunView
from anchorscope.show.claims import claims_of
from kit.show_fixture import NAMES

__all__ = ["NAMES", "add_strict"]


def add_strict(folder: Path) -> RunView:
    """The run with its claims table."""
    claims_of([RunView.open(folder)]).to_csv(folder / "tables" / "claims.csv", index=False)
    return RunView.open(folder)
