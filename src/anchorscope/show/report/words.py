"""What a run means, in sentences written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anchorscope.records import Estimate
from anchorscope.show.curves import FEW
from anchorscope.show.report.headline import Headline


def number(value: float, digits: int = 1) -> str:
    """The number with a true minus sign; 'no number' where there is none, never a zero."""
    if not math.isfinite(value):
        return "no number"
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def percent(share: float) -> str:
    """A share of 1 as whole percents, with a decimal where whole ones would say 0 or 100."""
    if not math.isfinite(share):
        return "no number"
    digits = 0 if share in (0, 1) or 0.01 <= share <= 0.99 else 1
    return f"{100 * share:.{digits}f} %"


def interval(estimate: Estimate, digits: int = 1) -> str:
    """'95 % interval low to high', or nothing where the table has no interval."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f"95 % interval {number(estimate.low, digits)} to {number(estimate.high, digits)}"


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
