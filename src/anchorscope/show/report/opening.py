"""How the report opens: three sentences on the whole run, to be read beside the ΔP figure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from anchorscope.run_folder.view import RunView, records, where
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
        datasets[_finds(row)].append(title)
    return start + "; ".join(f"{what} on {listed(d)}" for what, d in datasets.items()) + "."


def _finds(row: Mapping[str, Any]) -> str:
    """What strict mode does on a dataset: 'finds two pathways', 'cannot tell'."""
    by = {"belief": "the clean belief", "kinds": "kinds of question", "finder": "the finder"}
    return {
        "two-pathways": "finds two pathways",
        "explained": f"finds two groups that {by.get(str(row['by']), 'something else')} explains",
        "graded": "finds a difference of degree, not two groups",
        "uniform": "finds one law for all samples",
        "no-effect": "finds no effect",
        "cannot-tell": "cannot tell",
        "too-few": "makes no finding for lack of samples",
    }.get(str(row["finding"]), f"finds {row['finding']}")


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
