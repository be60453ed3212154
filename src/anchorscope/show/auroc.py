"""The AUROC curves of a run: of the probe at the answer, and of the one at the question alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anchorscope.show.load import RunView, where
from anchorscope.show.style import Series, color_of, curve


def auroc_series(run: RunView, titles: Mapping[str, str]) -> list[Series]:
    """A curve for each dataset of the run; dashed, the question-only probe where it was trained."""
    found = []
    for position, (name, title) in enumerate(titles.items()):
        if name not in run.titles:
            continue
        color = color_of(position, "Q")
        rows = where(run.probes, dataset=name)
        found.append(curve(rows, "auroc", label=title, color=color, n="n_test"))
        before = run.evidence.get("question_probe")
        if before is not None:
            named = f"{title}, question only"
            rows = where(before, dataset=name)
            found.append(curve(rows, "auroc", label=named, color=color, dashed=True))
    return found


def dashed_note(runs: Sequence[RunView]) -> str:
    """What the dashed curves are; empty where there are none."""
    if not any("question_probe" in run.evidence for run in runs):
        return ""
    return " Dashed: a probe at the last question token, before any answer."
