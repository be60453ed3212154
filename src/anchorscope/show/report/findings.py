"""Strict mode's finding on each dataset, with the sentences and numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.words import cautions, number, percent, sentences

FINDINGS = {
    "two-pathways": "Two pathways",
    "kinds-of-question": "Kinds of question: two groups, and they are kinds of question",
    "margin": "Margin: two groups, and the clean belief tells them apart",
    "class-collapse": "Class collapse: the pathway is the predicted class under another name",
    "shift": "Not shown: one displacement makes up most of the movement",
    "continuum": "Not shown: samples depend on the question by degree",
    "one-mechanism": "Not shown: one mechanism gives as much",
    "no-effect": "Not shown: the control moves as much",
    "undecided": "Undecided",
    "too-few": "No finding: too few samples",
}
NOT_SHOWN = "That two pathways are not shown does not mean that there are none."
WORDS = (
    "Q (question-anchored): the probe’s prediction on the sample needs the flow from the exact "
    "question tokens. A (answer-anchored): it does not."
)
HOW = (
    "A finding is read at the layer whose clean probe is best, which is chosen without a look at "
    "any knocked-out state. Two pathways are found only where, within a predicted class, samples "
    "fall into two groups (two humps of shifts, or two laws) after relation, kind of answer, "
    "length and the clean belief are taken out, probes that share no training question agree on "
    "the groups, and the groups lie further apart than one mechanism puts them."
)


def findings(run: RunView, heads: Sequence[Headline]) -> Safe:
    """For each dataset what it is and why, the sentences of both modes, and what weakens them."""
    verdicts = {str(row["dataset"]): row for row in records(run.findings)} if run.has_strict else {}
    parts: list[Safe] = []
    for head in heads:
        verdict = verdicts.get(head.dataset)
        if verdict is None:
            parts.append(tag("h3", head.title))
        else:
            parts.append(tag("h3", f"{head.title}: ", tag("em", finding_name(verdict))))
            parts.append(tag("p", _why(verdict), class_="quiet"))
        parts.append(tag("p", " ".join(sentences(head))))
        parts += [tag("p", text, class_="box warn") for text in cautions(head)]
        parts += [tag("p", text) for text in robustness(run, head.dataset)]
    return join([*parts, tag("p", WORDS, *([f" {HOW}"] if verdicts else []), class_="quiet")])


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


def finding_name(verdict: Mapping[str, Any]) -> str:
    """The finding of a row of findings.csv in words."""
    return FINDINGS.get(str(verdict["finding"]), str(verdict["finding"]))


def _why(verdict: Mapping[str, Any]) -> str:
    """The reason, the layer, and the power that the run had."""
    said = f"Why: {verdict['why']}. Layer {verdict['layer']}, {verdict['seeds']} sets of folds."
    power = float(verdict.get("power", math.nan))
    if math.isfinite(power):
        said += (
            f" With these {verdict['n']} samples, this noise and this share of Q, the clear case "
            f"(groups five spreads of the noise apart) would be found with a chance of about "
            f"{percent(power)}."
        )
    return f"{said} {NOT_SHOWN}" if verdict["finding"] != "two-pathways" else said


def evidence_table(run: RunView) -> Safe:
    """Strict mode's numbers at the chosen layer, a column for each dataset."""
    columns = []
    for verdict in records(run.findings):
        dataset, layer = str(verdict["dataset"]), verdict["layer"]
        (row,) = records(where(run.strict, dataset=dataset, layer=layer))
        columns.append((f"{run.titles.get(dataset, dataset)}, layer {layer}", _numbers(row)))
    names = [name for name, _ in columns[0][1]] if columns else []
    rows = [[name, *(said[place][1] for _, said in columns)] for place, name in enumerate(names)]
    return table(["At the chosen layer", *(title for title, _ in columns)], rows)


def _numbers(row: dict[str, Any]) -> list[tuple[str, str]]:
    def of(name: str, digits: int = 2) -> str:
        return number(float(row[name]), digits)

    def ends(name: str, digits: int = 2) -> str:
        return f"{of(name, digits)} ({of(name + '_low', digits)} to {of(name + '_high', digits)})"

    def band(name: str) -> str:
        null = name.replace("gap", "null")
        return f"{of(name)} (one mechanism: {of(null + '_low')} to {of(null + '_high')})"

    share = float(row["group_explained"])
    return [
        ("Gap of Q and A, ΔP: paper mode", of("paper_gap")),
        *(
            [("The same probe for group and effect, half of the training", of("same_gap"))]
            if "same_gap" in row
            else []
        ),
        ("Strict mode: another probe for the effect", band("strict_gap")),
        *(
            [("Share of the movement that kinds of question account for", percent(row["kinds"]))]
            if "kinds" in row
            else []
        ),
        ("The same within predicted classes, logits", band("strict_within_gap_logit")),
        ("Agreement of independent probes on the groups (κ)", ends("kappa")),
        ("Agreement with the next layer (κ)", ends("kappa_next")),
        ("Share of the grouping that the predicted class explains", percent(share)),
        ("Agreement on how far each sample moves (correlation)", ends("reliability")),
        ("The same under neutral tokens", of("reliability_control")),
        ("Two humps within predicted classes: dip test, p", of("dip_p_both", 3)),
        ("Two components against one: BIC, above 0 for two", of("bic_both", 1)),
        ("AUROC of the clean probe on knocked-out states", ends("knockout_auroc")),
        ("AUROC of a probe trained on knocked-out states", ends("refit_auroc")),
        ("How far states moved: ‖x′ − x‖ / ‖x‖", of("moved_norm")),
        ("How far from clean states (Mahalanobis, clean = 1)", of("moved_mahalanobis")),
        ("What the group adds in predicting errors, nats a question", ends("adds_gain", 4)),
    ]
