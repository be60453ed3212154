"""The finding on each dataset: its name, one gap, and the answers to the five questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.words import cautions, number, percent, sentences

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
WORDS = (
    "Q (question-anchored): the probe’s prediction on the sample needs the flow from the exact "
    "question tokens. A (answer-anchored): it does not."
)
ASSUMPTIONS = (
    (
        "E_Q holds the subject and the property that are asked for",
        "whole-question cut (E5, finder)",
    ),
    ("no token before the cut has relayed the subject’s information", "whole-question cut (E2)"),
    ("the probe reads knocked-out states as it reads clean ones", "neutral control (E1); refit"),
    ("a sample’s shift is its own, not a jolt of the cut", "retest and random direction (E3)"),
    ("verdicts are right but for a few percent", "anchorscope verdicts; --robust flips some"),
)


def findings(run: RunView, heads: Sequence[Headline]) -> Safe:
    """For each dataset what was found and why, and what weakens it."""
    rows = {str(row["dataset"]): row for row in records(run.findings)} if run.has_strict else {}
    parts: list[Safe] = []
    for head in heads:
        row = rows.get(head.dataset)
        if row is None:
            parts += [tag("h3", head.title), tag("p", " ".join(sentences(head)))]
        else:
            parts += _finding(row, head)
        parts += [tag("p", text, class_="box warn") for text in cautions(head)]
        parts += [tag("p", text) for text in robustness(run, head.dataset)]
    return join([*parts, tag("p", WORDS, class_="quiet"), *([_glossary()] if rows else [])])


def _finding(row: Mapping[str, Any], head: Headline) -> list[Safe]:
    name = str(row["finding"])
    link = tag("a", finding_name(row), href=f"#finding-{name}")
    parts = [tag("h3", f"{head.title}: ", link)]
    half = float(row["power_half"])
    if name in ("cannot-tell", "graded", "uniform") and math.isfinite(half) and half < ENOUGH:
        parts.append(tag("p", "This run cannot tell two groups from one.", class_="box warn"))
    parts.append(tag("p", f"{_sentence(str(row['why']))} {_gap(row, head.unit)} {_power(row)}"))
    parts.append(tag("p", " ".join(sentences(head))))
    parts.append(five_answers(row, head.unit))
    if missing := str(row["untested"]).strip():
        parts.append(tag("p", f"Not tested, for lack of the pass: {missing}.", class_="box warn"))
    return parts


def finding_name(row: Mapping[str, Any]) -> str:
    """The finding of a row of findings.csv in words."""
    name, by = str(row["finding"]), str(row.get("by") or "")
    said = MEANINGS.get(name, (name, ""))[0]
    return f"{said} by {by}" if by else said


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def layers_of(row: Mapping[str, Any]) -> str:
    """The band in words: 'layer 7', 'layers 7 to 9', 'layers 3, 5 and 6'."""
    layers = [int(layer) for layer in str(row["layers"]).split()]
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers[:-1]))} and {layers[-1]}"


def _gap(row: Mapping[str, Any], unit: str) -> str:
    start = f"Read over {layers_of(row)}, with groups from one probe and effects from another"
    if not math.isfinite(float(row["gap"])):
        return f"{start}, one of the groups is empty, and there is no gap."
    return (
        f"{start}, the gap of Q and A is {_ends(row, 'gap', 1)} {unit} ({number(row['same_gap'])} "
        f"with both from one probe; the clean belief is read with a reliability of "
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


def five_answers(row: Mapping[str, Any], unit: str) -> Safe:
    """The five questions of a dataset with their numbers and tests."""
    groups = "no two groups to explain"
    e5 = groups
    if math.isfinite(float(row["cells"])):
        e5 = (
            f"cells of class, belief and kinds account for {percent(row['cells'])} of the groups "
            f"(belief alone {percent(row['belief'])}); within the cells p = {_p(row, 'within_p')}; "
            f"the belief tells them with AUROC {number(row['told'], 2)} (a rule of the belief: "
            f"{number(row['told_by_rule'], 2)}); hiding the whole question leaves "
            f"{_share(row, 'finder')} of their gap"
        )
    rows = [
        [
            "1. Effect beyond the neutral control",
            f"{_ends(row, 'effect', 1)} {unit}; {_ends(row, 'effect_logit', 2)} logits; "
            f"{_ends(row, 'effect_flips', 2)} of the predictions flip more; "
            f"p = {_p(row, 'effect_p')}",
        ],
        [
            "2. Share of the whole question’s effect",
            f"exact tokens {_share_ends(row, 'exact_share')}; other content words "
            f"{_share_ends(row, 'content_share')}",
        ],
        [
            "3. Is it the sample’s own?",
            f"sides agree {_ends(row, 'sides', 2)} (random direction "
            f"{number(row['sides_null'], 2)}), p = {_p(row, 'sides_p')}; retest "
            f"{_ends(row, 'retest', 2)}, p = {_p(row, 'retest_p')}",
        ],
        [
            "4. Two groups or a degree?",
            f"dip p = {_p(row, 'dip_p')} (uniform: {_p(row, 'uniform_p')}; six looks, each at "
            f"0.008), {row['within']} on the road of {row['road']}; sides’ κ "
            f"{number(row['kappa'], 2)}, retest’s {number(row['retest_kappa'], 2)}",
        ],
        ["5. What explains it?", e5],
    ]
    return table(["Question", "Answer"], rows, text_columns=2)


def _ends(row: Mapping[str, Any], name: str, digits: int) -> str:
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if not math.isfinite(value):
        return "not tested"
    if not math.isfinite(low):
        return number(value, digits)
    return f"{number(value, digits)} ({number(low, digits)} to {number(high, digits)})"


def _share(row: Mapping[str, Any], name: str) -> str:
    value = float(row[name])
    return percent(value) if math.isfinite(value) else "an untested part"


def _share_ends(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if not math.isfinite(value):
        return "not tested"
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def _p(row: Mapping[str, Any], name: str) -> str:
    p = float(row[name])
    if not math.isfinite(p):
        return "not tested"
    return "< 0.001" if p < 0.001 else number(p, 3)


def robustness(run: RunView, dataset: str) -> list[str]:
    """Under how many other choices the finding is the same; nothing where it was not asked."""
    if not run.has_robust:
        return []
    first, *others = records(where(run.robust, dataset=dataset))
    same = sum(bool(row["agrees"]) for row in others)
    few = sum(row["finding"] == "too-few" for row in others if first["finding"] != "too-few")
    less = f"; {few} of them had too few answers for a finding" if few else ""
    choices = f"{same} of {len(others)} other choices"
    return [f"The finding is the same under {choices}{less} (tables/robust.csv)."]


def _glossary() -> Safe:
    """What each finding means, and what all of them assume."""
    means = [
        tag("li", tag("b", title), f": {text}.", id=f"finding-{name}")
        for name, (title, text) in MEANINGS.items()
    ]
    said = (
        "A finding compares the same samples with and without the cut (an intervention on the "
        "model, none on its training). It assumes the left column; the right one is what would "
        "show that an assumption fails."
    )
    return tag(
        "details",
        tag("summary", "What the findings mean, and what they assume"),
        tag("ul", *means),
        tag("p", said),
        table(["Assumed", "Stressed by"], [list(pair) for pair in ASSUMPTIONS], text_columns=2),
    )


def evidence_table(run: RunView) -> Safe:
    """What strict.csv says of the band's best layer, beside the five answers."""
    columns = []
    for found in records(run.findings):
        dataset, layer = str(found["dataset"]), found["layer"]
        (row,) = records(where(run.strict, dataset=dataset, layer=layer))
        columns.append((f"{run.titles.get(dataset, dataset)}, layer {layer}", _numbers(row)))
    names = [name for name, _ in columns[0][1]] if columns else []
    rows = [[name, *(texts[place][1] for _, texts in columns)] for place, name in enumerate(names)]
    return table(["At the best layer alone", *(title for title, _ in columns)], rows)


def _numbers(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("Agreement of independent probes on who flips (κ)", _ends(row, "kappa", 2)),
        ("Agreement with the next layer (κ)", _ends(row, "kappa_next", 2)),
        (
            "Share of the grouping that the predicted class explains",
            percent(row["group_explained"]),
        ),
        ("AUROC of the clean probe on knocked-out states", _ends(row, "knockout_auroc", 2)),
        ("AUROC of a probe trained on knocked-out states", _ends(row, "refit_auroc", 2)),
        ("How far states moved: ‖x′ − x‖ / ‖x‖", number(row["moved_norm"], 2)),
        ("How far from clean states (Mahalanobis, clean = 1)", number(row["moved_mahalanobis"], 2)),
        ("What the group adds in predicting errors, nats a question", _ends(row, "adds_gain", 4)),
    ]
