"""The finding on each dataset: its name, one gap, and the answers to the five questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anchorscope.run_folder.table_columns import FINDINGS_EFFECT
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.html import Table
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.words import (
    cautions,
    listed,
    number,
    percent,
    sentences,
    two_digits,
    with_span,
)

MEANINGS: Mapping[str, tuple[str, str]] = {  # finding -> (name, what it means)
    "two-pathways": (
        "Two pathways",
        "samples fall into two groups that come back in a retest and that nothing known without "
        "the knockout explains",
    ),
    "explained": ("Two groups, explained", "two groups, and something else tells which is which"),
    "graded": ("By degree", "samples differ in how far they move, in one group and not two"),
    "uniform": ("One law", "one law moves all samples; what it leaves over does not come back"),
    "no-effect": (
        "No effect",
        "not even hiding the whole question moves the probe beyond the neutral control",
    ),
    "cannot-tell": (
        "This run cannot tell",
        "it would have missed two groups, or cannot exclude another reason for those it sees",
    ),
    "too-few": ("Too few samples", "fewer than 150 usable answers: no finding is made"),
}
ENOUGH = 0.8  # power from which a run could have seen what it does not show


def findings(run: RunView, heads: Sequence[Headline]) -> list[dict[str, Any]]:
    """For each dataset what was found and why, and what weakens it, as the report shows it.

    A run without strict mode's tables has no finding: its `name` is empty.
    """
    rows = {str(row["dataset"]): row for row in records(run.findings)} if run.has_strict else {}
    return [
        {
            "title": head.title,
            "sentences": " ".join(sentences(head)),
            "cautions": cautions(head),
            "robustness": _robustness(run, head.dataset),
            **_finding(rows.get(head.dataset), head),
        }
        for head in heads
    ]


def _finding(row: Mapping[str, Any] | None, head: Headline) -> dict[str, Any]:
    """What a row of findings.csv adds."""
    if row is None:
        return {"name": "", "underpowered": False, "untested": ""}
    finding, why, half = str(row["finding"]), str(row["why"]), float(row["power_half"])
    tells = finding not in ("cannot-tell", "graded", "uniform") or not half < ENOUGH
    return {
        "finding": finding,
        "name": finding_name(row),
        "underpowered": not tells,
        "summary": f"{why[:1].upper()}{why[1:]}. {_gap(row, head.unit)} {_power(row)}",
        "answers": five_answers(row, head.unit),
        "untested": str(row["untested"]).strip(),
    }


def finding_name(row: Mapping[str, Any]) -> str:
    """The finding of a row of findings.csv in words."""
    name, by = str(row["finding"]), str(row.get("by") or "")
    words = MEANINGS.get(name, (name, ""))[0]
    return f"{words} by {by}" if by else words


def layers_of(row: Mapping[str, Any]) -> str:
    """The band in words: 'layer 7', 'layers 7 to 9', 'layers 3, 5 and 6'."""
    layers = [int(layer) for layer in str(row["layers"]).split()]
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {listed([str(layer) for layer in layers])}"


def _gap(row: Mapping[str, Any], unit: str) -> str:
    start = f"Read over {layers_of(row)}, with groups from one probe and effects from another"
    if not math.isfinite(float(row["gap"])):
        return f"{start}, one of the groups is empty, and there is no gap."
    same = f"{number(row['same_gap'])} with both from one probe"
    if not math.isfinite(float(row["same_gap"])):
        same = "with both from one probe it was not measured: a group is empty"
    return (
        f"{start}, the gap of Q and A is {with_span(row, 'gap', number)} {unit} "
        f"({same}; the clean belief is read with a reliability of "
        f"{number(row['reliability'], 2)}, and unreliable groups shrink a gap)."
    )


def _power(row: Mapping[str, Any]) -> str:
    half, fifth = float(row["power_half"]), float(row["power_fifth"])
    if not math.isfinite(half):
        return ""
    return (
        f"Had half of these {row['n']} samples lost their belief and the others kept it, this run "
        f"would have found two pathways in {percent(half)}; had a fifth lost it, in "
        f"{percent(fifth)}."
    )


def five_answers(row: Mapping[str, Any], unit: str) -> Table:
    """The five questions of a dataset: for each number what it is of, its interval and its test."""
    answers = {
        "1. Effect beyond the neutral control": _effect(row, unit),
        "2. Share of the whole question’s effect": _shares(row),
        "3. Is it the sample’s own?": _agreement(row),
        "4. Two groups or a degree?": _groups(row),
        "5. What explains it?": _explanation(row),
    }
    return Table(
        ["Question", "Answer"], [list(answer) for answer in answers.items()], text_columns=2
    )


def _effect(row: Mapping[str, Any], unit: str) -> str:
    """The three tested numbers with their test, then the means over all samples, not tested.

    A loss of one predicted class and a gain of the other cancel in a mean over all, so that its
    interval may hold zero where the test finds a loss. Runs of earlier versions did not write the
    numbers of the classes.
    """
    two = partial(with_span, row, show=two_digits)
    tested = [f"{two('effect_flips')} of the predictions flip more"]
    if all(name in row for name in FINDINGS_EFFECT):
        tested = [
            f"samples predicted right {two('effect_logit_right')} logits",
            f"samples predicted wrong {two('effect_logit_wrong')} logits",
            *tested,
        ]
    return (
        f"{'; '.join(tested)}; tested for a loss of logits within either predicted class, or more "
        f"flips: {_p(row, 'effect_p')}. The mean over all samples, where a gain and a loss cancel, "
        f"is not tested: {with_span(row, 'effect', number)} {unit}, {two('effect_logit')} logits"
    )


def _shares(row: Mapping[str, Any]) -> str:
    if not math.isfinite(float(row["question_p"])):
        return "not measured: this run has no pass that hides the whole question"
    parts = []
    for what, name in (("exact tokens", "exact_share"), ("other content words", "content_share")):
        shown = with_span(row, name, percent)
        if not math.isfinite(float(row[name])):
            shown += " (the whole question has no sure effect on the samples read without them)"
        parts.append(f"{what} {shown}")
    return "; ".join(parts)


def _agreement(row: Mapping[str, Any]) -> str:
    two = partial(with_span, row, show=two_digits)
    sides = f"sides agree {two('sides')} (random direction {number(row['sides_null'], 2)}), " + _p(
        row, "sides_p"
    )
    if not math.isfinite(float(row["retest"])):
        return f"{sides}; retest not measured: too few samples were read again"
    return f"{sides}; retest {two('retest')}, {_p(row, 'retest_p')}"


def _groups(row: Mapping[str, Any]) -> str:
    if not math.isfinite(float(row["dip_p"])):
        return "not measured: too few samples to look for two humps"
    among = (
        "both predicted classes" if row["within"] == "both" else f"those predicted {row['within']}"
    )
    unit = " in units of the margin" if row["road"] == "laws" else ""
    dip = (
        f"dip of the shifts{unit} among {among} {_p(row, 'dip_p')} "
        f"(uniform {_p(row, 'uniform_p')}; the smallest of six looks, each at 0.008)"
    )
    if not math.isfinite(float(row["kappa"])):
        return (
            f"{dip}; agreement on the groups (κ) not measured: there are no two humps to agree on"
        )
    again = number(row["retest_kappa"], 2)
    if not math.isfinite(float(row["retest_kappa"])):
        again = "not measured: too few samples of these humps were read again"
    return f"{dip}; agreement on the groups (κ): sides {number(row['kappa'], 2)}, retest {again}"


def _explanation(row: Mapping[str, Any]) -> str:
    if not math.isfinite(float(row["cells"])):
        return "no two groups to explain"
    finder = float(row["finder"])
    left = f"leaves {percent(finder)} of their gap"
    if not math.isfinite(finder):
        left = "was not measured for these groups"
    return (
        f"cells of class, belief and kinds account for {percent(row['cells'])} of the groups "
        f"(belief alone {percent(row['belief'])}); within the cells {_p(row, 'within_p')}; "
        f"the belief tells them with AUROC {number(row['told'], 2)} (a rule of the belief: "
        f"{number(row['told_by_rule'], 2)}); hiding the whole question {left}"
    )


def _p(row: Mapping[str, Any], name: str) -> str:
    """'p = 0.012', 'p < 0.001' or 'not tested'."""
    p = float(row[name])
    if not math.isfinite(p):
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {number(p, 3)}"


def _robustness(run: RunView, dataset: str) -> str:
    """Under how many other choices the finding is the same; empty without `--robust`."""
    if not run.has_robust:
        return ""
    first, *others = records(where(run.robust, dataset=dataset))
    same = sum(bool(row["agrees"]) for row in others)
    few = sum(row["finding"] == "too-few" for row in others if first["finding"] != "too-few")
    less = f"; {few} of them had too few answers for a finding" if few else ""
    choices = f"{same} of {len(others)} other choices"
    return f"The finding is the same under {choices}{less} (tables/robust.csv)."
