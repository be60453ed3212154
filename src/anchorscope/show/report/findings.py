"""Strict mode's finding on each dataset, with the sentences and numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anchorscope.run_folder.view import RunView, records, where
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.words import cautions, number, percent, sentences

FINDINGS = {
    "two-pathways": "Two pathways",
    "one-mechanism": "One mechanism",
    "shift": "One shift of everybody",
    "class-collapse": "Class collapse: the pathway is the predicted class under another name",
    "continuum": "A continuum: samples depend on the question by degree",
    "no-effect": "No effect beyond that of random tokens",
    "undecided": "Undecided",
}
WORDS = (
    "Q (question-anchored): the probe’s verdict on the sample needs the flow from the exact "
    "question tokens. A (answer-anchored): it does not. The sentences name the layer where the "
    "paper-mode gap is widest; picking it makes paper mode look its best."
)
HOW = (
    "A finding is read at the layer whose clean probe is best, which is chosen without a look at "
    "any knocked-out state. Two pathways are found only where the gap is beyond what one mechanism "
    "gives within a predicted class, probes that share no training question agree on the groups, "
    "and the shifts have two humps."
)


def findings(run: RunView, heads: Sequence[Headline]) -> Safe:
    """For each dataset what it is and why, the sentences of both modes, and what weakens them."""
    verdicts = {str(row["dataset"]): row for row in records(run.verdict)} if run.has_strict else {}
    parts: list[Safe] = []
    for head in heads:
        verdict = verdicts.get(head.dataset)
        if verdict is None:
            parts.append(tag("h3", head.title))
        else:
            parts.append(tag("h3", f"{head.title}: ", tag("em", finding_name(verdict))))
            where_read = f"Layer {verdict['layer']}, {verdict['seeds']} sets of folds."
            parts.append(tag("p", f"Why: {verdict['why']}. {where_read}", class_="quiet"))
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
    """The finding of a row of verdict.csv in words."""
    return FINDINGS.get(str(verdict["finding"]), str(verdict["finding"]))


def evidence_table(run: RunView) -> Safe:
    """Strict mode's numbers at the chosen layer, a column for each dataset."""
    columns = []
    for verdict in records(run.verdict):
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
        ("Gap of Q and A, ΔP", band("strict_gap")),
        ("The same within predicted classes, logits", band("strict_within_gap_logit")),
        ("Agreement of independent probes on the groups (κ)", ends("kappa")),
        ("Agreement with the next layer (κ)", ends("kappa_next")),
        ("Share of the grouping that the predicted class explains", percent(share)),
        ("Agreement on how far each sample moves (correlation)", ends("reliability")),
        ("The same under random tokens", of("reliability_control")),
        ("Two humps within predicted classes: dip test, p", of("dip_p_both", 3)),
        ("Two components against one: BIC, above 0 for two", of("bic_both", 1)),
        ("AUROC of the clean probe on knocked-out states", ends("knockout_auroc")),
        ("AUROC of a probe trained on knocked-out states", ends("refit_auroc")),
        ("How far states moved: ‖x′ − x‖ / ‖x‖", of("moved_norm")),
        ("How far from clean states (Mahalanobis, clean = 1)", of("moved_mahalanobis")),
        ("What the group adds in predicting errors, nats a question", ends("adds_gain", 4)),
    ]
