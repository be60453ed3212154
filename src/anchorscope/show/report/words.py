"""Numbers as text, and what a run means in sentences written from its numbers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.curves import FEW
from anchorscope.show.report.headline import Headline, kinds


def number(value: float, digits: int = 1) -> str:
    """The number with a true minus sign; 'not measured' where there is none, never a zero."""
    if not math.isfinite(value):
        return "not measured"
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def percent(share: float) -> str:
    """A share of 1 as whole percents, with a decimal where whole ones would say 0 or 100."""
    if not math.isfinite(share):
        return "not measured"
    digits = 0 if share in (0, 1) or 0.01 <= share <= 0.99 else 1
    return f"{number(100 * share, digits)} %"


def short(value: float) -> str:
    """Three figures or so, empty where there is no number: `−17.4`, `2.83`."""
    if not math.isfinite(value):
        return ""
    return number(value, 1 if abs(value) >= 9.995 else 2)


def span(low: float, high: float, show: Callable[[float], str] = number) -> str:
    """'low to high', or 'no interval' where an end is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "no interval"
    return f"{show(low)} to {show(high)}"


def with_span(row: Mapping[str, Any], name: str, show: Callable[[float], str]) -> str:
    """'value (low to high)' of a table's columns `name`, `name_low`, `name_high`."""
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if not math.isfinite(value):
        return "not measured"
    return f"{show(value)} ({span(low, high, show)})" if math.isfinite(low) else show(value)


def two_digits(value: float) -> str:
    """The number with two decimals."""
    return number(value, 2)


def interval(estimate: Estimate, digits: int = 1) -> str:
    """'95 % interval low to high', or nothing where the table has no interval."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    ends = span(estimate.low, estimate.high, lambda value: number(value, digits))
    return f"95 % interval {ends}"


def moves(value: float, what: str = "it", *, unit: str = "points") -> str:
    """'lowers it by x points': the verb says the sign, the number the size."""
    if not math.isfinite(value):
        return f"changes {what} by an unknown amount"
    shown = number(abs(value))
    if float(shown) == 0:
        return f"leaves {what} where it was (0.0 {unit})"
    return f"{'raises' if value > 0 else 'lowers'} {what} by {shown} {unit}"


def listed(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def opening(run: RunView, heads: Sequence[Headline]) -> tuple[str, str, str]:
    """What was run, what paper mode shows, and what strict mode says."""
    return _what_was_run(run), _paper_mode(heads), _strict_mode(run, heads)


def _what_was_run(run: RunView) -> str:
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


def _paper_mode(heads: Sequence[Headline]) -> str:
    """The gap of each dataset, measured by the probe that formed the groups."""
    start = "Paper mode, where one probe forms the groups Q and A and measures them too, shows "
    return f"{start}{_gaps({h: (h.layer, h.paper_gap.value) for h in heads})}."


def _strict_mode(run: RunView, heads: Sequence[Headline]) -> str:
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
    clauses = [f"a gap from A to Q of {listed(parts)}"] if parts else []
    return listed([*clauses, *([f"no two groups on {without}"] if without else [])])


def sentences(head: Headline) -> list[str]:
    """Two sentences on the best layer: the published reading, and the neutral control."""
    if head.layer is None:
        return [_no_groups(head)]
    return [_paper(head), _neutral(head)]


def cautions(head: Headline) -> list[str]:
    """What weakens the sentences: chance-level probes, few samples, class collapse."""
    if head.layer is None:
        return []
    found = [_chance(head), _few(head), _collapse(head)]
    return [text for text in found if text]


def _no_groups(head: Headline) -> str:
    q, a = head.most
    if not q and not a:
        return f"{head.title} has no sample that a probe could read, so there is nothing to say."
    if not q:
        return (
            f"Cutting the flow from the exact question tokens flips the probe’s prediction on none "
            f"of the {a} {head.title} samples at any layer: the Q group is empty, and there is "
            "no gap to report."
        )
    return (
        f"No layer has both a sample that flips and one that does not on {head.title}: "
        "one of the two groups is always empty, and there is no gap to report."
    )


def _paper(head: Headline) -> str:
    q, a = head.paper_q, head.paper_a
    first = "the probability of the probe’s first prediction"
    return (
        f"At layer {head.layer}, cutting the flow from the exact question tokens flips the probe’s "
        f"prediction on {percent(head.flip_share)} of {q.n + a.n} {head.title} samples (Q); "
        f"for these it {moves(q.value, first, unit=head.unit)}"
        f", and for the others (A) it {moves(a.value, unit=head.unit)}."
    )


def _neutral(head: Headline) -> str:
    flips, delta = head.neutral_flips, head.neutral_delta
    if not math.isfinite(flips.value):
        return "There is no neutral control at this layer to compare with."
    text = f"Cutting as many neutral tokens instead flips {percent(flips.value)}"
    if math.isfinite(delta.value):
        text += f", and over all samples {moves(delta.value, 'that probability', unit=head.unit)}"
    return text + "."


def _chance(head: Headline) -> str:
    auroc = head.auroc
    if not math.isfinite(auroc.value) or auroc.low > 0.5:
        return ""
    return (
        f"The {head.title} probe at layer {head.layer} is not shown to be better than chance "
        f"(AUROC {number(auroc.value, 2)}, {interval(auroc, 2) or 'no interval'}): its "
        "predictions, and so its flips, may mean nothing."
    )


def _few(head: Headline) -> str:
    sizes = {
        "paper": (head.paper_q.n, head.paper_a.n),
        "strict": (head.strict_q.n, head.strict_a.n),
    }
    small = [f"Q {q}, A {a} in {mode} mode" for mode, (q, a) in sizes.items() if min(q, a) < FEW]
    if not small:
        return ""
    return f"Few samples ({'; '.join(small)}): intervals from so few are too narrow to be trusted."


def _collapse(head: Headline) -> str:
    found = head.collapse
    if found is None or not found.total:
        return ""
    return (
        f"The knockout pushes nearly every {head.title} sample to one prediction: "
        f"{percent(found.right)} of those predicted right flip, and {percent(found.wrong)} of "
        "those predicted wrong. The pathway is then little more than the predicted class under "
        "another name."
    )
