"""Add the claims table to a synthetic run folder."""

from __future__ import annotations

from pathlib import Path

from anchorscope.run_folder.view import RunView
from anchorscope.show.claims import claims_of
from kit.show_fixture import NAMES

__all__ = ["NAMES", "add_strict"]


def add_strict(folder: Path) -> RunView:
    """Write the claims table of a run folder; return the run."""
    claims_of([RunView.open(folder)]).to_csv(folder / "tables" / "claims.csv", index=False)
    return RunView.open(folder)
