"""How the report opens: three sentences on the whole run, to be read beside the ΔP figure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.findings import finding_name
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.sections import kinds
from anchorscope.show.report.words import listed, number


def opening(run: RunView, heads: Sequence[Headline]) -> tuple[str, str, str]:
    """What was run, what paper mode shows, and what strict mode says."""
    return what_was_run(run), paper_mode(heads), strict_mode(run, heads)


def what_was_run(run: RunView) -> str:
    """The model, the questions, and on each dataset the n that probes can read."""
    layers = f" ({run.model['blocks']} layers)" if "blocks" in run.model else ""
    each = []
    for name, title in run.titles.items():
        counts = Counter(kinds(where(run.samples, dataset=name)))
        n = counts["right"] + counts["wrong"]
        each.append(f"n = {n} on {title} ({counts['right']} right)")
    return (
        f"{run.model_name}{layers} answered {len(run.samples)} questions; probes read the answers "
        f"that are right or wrong, {listed(each)}."
    )


def paper_mode(heads: Sequence[Headline]) -> str:
    """The gap of each dataset, measured by the probe that formed the groups."""
    start = "Paper mode, where one probe forms the groups Q and A and measures them too, shows "
    return f"{start}{_gaps({h: (h.layer, h.paper_gap.value) for h in heads})}."


def strict_mode(run: RunView, heads: Sequence[Headline]) -> str:
    """The datasets of each finding; the gaps alone for a run that has no findings."""
    start = "Strict mode, where another probe measures them, "
    if not run.has_strict:
        return f"{start}shows {_gaps({h: (h.layer, h.strict_gap.value) for h in heads})}."
    datasets: dict[str, list[str]] = defaultdict(list)
    for row in records(run.findings):
        title = run.titles.get(str(row["dataset"]), str(row["dataset"]))
        gap = number(float(row["gap"]))
        datasets[_finds(row)].append(f"{title} (gap {gap} at layer {row['layer']})")
    return start + "; ".join(f"{what} on {listed(d)}" for what, d in datasets.items()) + "."


def _finds(verdict: Mapping[str, Any]) -> str:
    """'finds one mechanism': the finding without what explains it."""
    name = str(verdict["finding"])
    if name in ("undecided", "too-few"):
        return "stays undecided" if name == "undecided" else "makes no finding for lack of samples"
    found = finding_name(verdict).removeprefix("Not shown: ").split(":")[0]
    found = found[:1].lower() + found[1:]
    shows = name in ("two-pathways", "kinds-of-question", "margin", "class-collapse")
    return f"finds {found}" if shows else f"does not show two pathways ({found})"


def _gaps(gaps: Mapping[Headline, tuple[int | None, float]]) -> str:
    """'a gap from A to Q of −20.0 points on Atlas (layer 16) and −29.6 on PopQA (layer 9)'."""
    measured = {h: gap for h, gap in gaps.items() if gap[0] is not None and math.isfinite(gap[1])}
    parts = []
    for head, (layer, value) in measured.items():
        unit = "" if parts else f" {head.unit}"
        parts.append(f"{number(value)}{unit} on {head.title} (layer {layer})")
    without = listed([head.title for head in gaps if head not in measured])
    said = [f"a gap from A to Q of {listed(parts)}"] if parts else []
    return listed([*said, *([f"no two groups on {without}"] if without else [])])
