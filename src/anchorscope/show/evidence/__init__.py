"""The other evidence, shown: every piece by name, in the report's order."""

from __future__ import annotations

from collections.abc import Mapping

from anchorscope.run_folder.view import RunView
from anchorscope.show.evidence import (
    answer_only,
    awareness,
    boundary,
    heads,
    patching,
    saliency,
    windows,
)
from anchorscope.show.evidence.shown import Shown

PIECES: Mapping[str, Shown] = {
    module.SHOWN.name: module.SHOWN
    for module in (patching, answer_only, boundary, awareness, saliency, heads, windows)
}


def pieces_of(run: RunView) -> list[Shown]:
    """The pieces of evidence whose tables a run holds."""
    return [shown for name, shown in PIECES.items() if name in run.evidence]
