"""The other evidence, shown: every piece by name, in the order of `--evidence`.

A piece with a table has a module of its name here, with a value `SHOWN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from anchorscope.run_folder import table_columns
from anchorscope.run_folder.view import RunView
from anchorscope.show.evidence.shown import Shown


def _shown(piece: str) -> Shown:
    return import_module(f"anchorscope.show.evidence.{piece.replace('-', '_')}").SHOWN


PIECES: Mapping[str, Shown] = {
    shown.name: shown
    for shown in (_shown(piece) for piece, tables in table_columns.PIECES.items() if tables)
}


def pieces_of(run: RunView) -> list[Shown]:
    """The pieces of evidence whose tables a run holds."""
    return [shown for name, shown in PIECES.items() if name in run.evidence]
