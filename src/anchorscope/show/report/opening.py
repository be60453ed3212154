"""How the report opens: three sentences on the whole run, to be read beside the ΔP figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.findings import finding_name
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.sections import kinds
from anchorscope.show.report.words import listed, number


def opening(run: RunView, heads: Sequence[Headline]) -> tuple[str, str, str]:
    """What was run, what paper mode shows, and what strict mode says."""
    return what_was_run(run), paper_mode(heads), strict_mode(run, heads)


def what_was_run(run: RunView) -> str:
    """The model, and for each dataset how many questions and how many answers for the probes."""
    layers = run.model.get("blocks")
    said = f"{run.model_name}{f' ({layers} layers)' if layers else ''} answered "
    each = []
    for name, title in run.titles.items():
        samples = where(run.samples, dataset=name)
        counts = Counter(kinds(samples))
        each.append(
            f"{len(samples)} {title} questions (n = {counts['right'] + counts['wrong']} answers "
            f"that probes can read: {counts['right']} right, {counts['wrong']} wrong)"
        )
    return f"{said}{listed(each)}."


def paper_mode(heads: Sequence[Headline]) -> str:
    """The widest gap of each dataset, measured by the probe that formed the groups."""
    start = "Paper mode, where one probe forms the groups and measures them too, shows "
    return f"{start}{listed([_paper_gap(head) for head in heads])}."


def _paper_gap(head: Headline) -> str:
    if head.layer is None or not math.isfinite(head.paper_gap.value):
        return f"no two groups on {head.title}"
    return f"{_gap(head, head.paper_gap.value)} on {head.title} (layer {head.layer})"


def strict_mode(run: RunView, heads: Sequence[Headline]) -> str:
    """The finding on each dataset; the gap alone for a run that has no findings."""
    start = "Strict mode, where another probe measures them, "
    verdicts = {str(row["dataset"]): row for row in records(run.verdict)} if run.has_strict else {}
    each = []
    for head in heads:
        verdict = verdicts.get(head.dataset)
        if verdict is None:
            each.append(f"{_strict_gap(head)} on {head.title}")
        else:
            gap = _gap(head, float(verdict["gap"]))
            each.append(
                f"“{finding_name(verdict)}” on {head.title} (layer {verdict['layer']}: {gap})"
            )
    return f"{start}{'finds' if verdicts else 'shows'} {listed(each)}."


def _strict_gap(head: Headline) -> str:
    value = head.strict_gap.value
    return _gap(head, value) if math.isfinite(value) else "no two groups"


def _gap(head: Headline, value: float) -> str:
    if not math.isfinite(value):
        return "no gap to report"
    return f"Q {number(abs(value))} {head.unit} {'below' if value < 0 else 'above'} A"
