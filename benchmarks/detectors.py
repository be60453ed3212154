"""Test a detector on given answers whose truth is known, and on questions far from its own.

    anchorscope detect collect --data atlas --limit 800 --dtype float32 --out runs/atlas
    anchorscope detect train runs/atlas --method combined --out detector
    python benchmarks/detectors.py detector runs/atlas [--questions 200] [--answers 60] [--facts 4]

Answers are made of atlas facts about things that are not in the run. Of the short ones, in several
forms, every second one is wrong. Every long one is a paragraph of facts, each wrong with
probability 0.3. A wrong fact holds the answer to another question of the same kind.

The 30 questions of everyday.txt are of other kinds than any training question; no outcome should be
firm, before the answer or after it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import anchorscope as anc
from anchorscope.answers.judge import judge
from anchorscope.detect.detector import Detector
from anchorscope.detect.scored import Scored
from anchorscope.models import Model
from anchorscope.records import Question
from anchorscope.stats.ranking import auroc

SENTENCES = {
    "capital": "The capital of {} is {}.",
    "currency": "The currency of {} is the {}.",
    "continent": "{} is in {}.",
    "country": "{} is in {}.",
}
FORMS = (
    "{}",
    "{}.",
    "**{}**",
    "It is {}.",
    "The answer is {}.",
    "Sure! It is {}.",
    '{{"answer": "{}"}}',
)
WRONG = 0.3
ASKED = "Tell me a few facts about countries and cities."


@dataclass(frozen=True)
class Paragraph:
    """A long answer, with the place of each of its facts and whether the fact is wrong."""

    text: str
    facts: tuple[tuple[int, int, bool], ...]  # characters of the value that is claimed


def paragraphs(
    questions: Sequence[Question], count: int, *, facts: int, seed: int = 0
) -> list[Paragraph]:
    """Make paragraphs of facts, some of them wrong, from randomly drawn questions."""
    rng = np.random.default_rng(seed)
    usable = [q for q in questions if q.relation in SENTENCES and q.subjects]
    made = []
    for _ in range(count):
        text, places = "", []
        for number in rng.choice(len(usable), facts, replace=False):
            question = usable[number]
            value, wrong = question.answers[0], bool(rng.random() < WRONG)
            if wrong:
                value = wrong_answer(question, usable, rng)
            sentence = SENTENCES[str(question.relation)].format(question.subjects[0], value)
            text += (" " if text else "") + sentence
            places.append((len(text) - 1 - len(value), len(text) - 1, wrong))
        made.append(Paragraph(text, tuple(places)))
    return made


def wrong_answer(question: Question, others: Sequence[Question], rng: np.random.Generator) -> str:
    """Draw the answer to another question of the same kind."""
    same_kind = [
        q.answers[0]
        for q in others
        if q.relation == question.relation and q.answers[0] not in question.answers
    ]
    return str(rng.choice(same_kind))


def table_of_forms(
    detector: Detector,
    model: Model,
    questions: Sequence[Question],
    count: int,
    *,
    dataset: str,
    seed: int = 0,
) -> list[str]:
    """Score short answers in each form: AUROC, and the outcomes of right and of wrong ones.

    Of all questions, and of those that the model answers right itself.
    """
    rng = np.random.default_rng(seed)
    usable = [q for q in questions if q.relation in SENTENCES]
    drawn = [usable[n] for n in rng.choice(len(usable), min(count, len(usable)), replace=False)]
    wrong = np.arange(len(drawn)) % 2
    values = [
        wrong_answer(question, usable, rng) if z else question.answers[0]
        for question, z in zip(drawn, wrong, strict=True)
    ]
    forms = {form.format("X"): [form.format(value) for value in values] for form in FORMS}
    forms["lower case"] = [value.lower() for value in values]
    texts = [question.text for question in drawn]
    own = detector.score(model, texts, dataset=dataset)
    known = np.array(
        [judge(one.answer, q.answers) == "right" for one, q in zip(own, drawn, strict=True)]
    )
    lines = [f"{len(drawn)} questions; {known.sum()} of them the model answers right itself"]
    for name, answers in forms.items():
        scored = detector.score(model, texts, answer=answers, dataset=dataset)
        p = np.array([one.probability for one in scored])
        outcome = np.array([one.outcome for one in scored])
        for group, mask in (("all", np.ones(len(drawn), bool)), ("known", known)):
            counts = [
                f"{np.sum(mask & (wrong == z))} {word}: "
                + ", ".join(
                    f"{np.sum(outcome[mask & (wrong == z)] == kind)} {kind}"
                    for kind in ("right", "wrong", "cannot say", "no answer")
                )
                for z, word in ((0, "right"), (1, "wrong"))
            ]
            area = auroc(wrong[mask], p[mask])
            lines.append(f"{name:18} {group:5} AUROC {area:.3f}; {'; '.join(counts)}")
    return lines


def summary(long: Sequence[Paragraph], scored: Sequence[Scored]) -> list[str]:
    """Summarise the scores: AUROC of facts and of whole answers, and counts of firm outcomes."""
    fact: list[tuple[bool, float, str]] = []
    for paragraph, one in zip(long, scored, strict=True):
        entities = [span for span in one.spans if span.kind == "entity"]
        for start, stop, wrong in paragraph.facts:
            own = [span for span in entities if span.start < stop and start < span.end]
            if own:
                worst = max(own, key=lambda span: span.probability)
                fact.append((wrong, worst.probability, worst.outcome))
    total = sum(len(paragraph.facts) for paragraph in long)
    z, p = np.array([f[0] for f in fact]).astype(int), np.array([f[1] for f in fact])
    whole = np.array([any(wrong for *_, wrong in paragraph.facts) for paragraph in long])
    worst = np.array([one.probability for one in scored])
    firm = [f for f in fact if f[2] in ("right", "wrong")]
    correct = sum(f[0] == (f[2] == "wrong") for f in firm)
    return [
        f"{len(fact)} of {total} facts found, {z.sum()} of them wrong",
        f"facts: AUROC {auroc(z, p):.3f}",
        f"whole answers: AUROC {auroc(whole.astype(int), worst):.3f}",
        f"firm outcomes: {len(firm)} of {len(fact)} facts, {correct} of these correct",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("detector")
    parser.add_argument("run")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--answers", type=int, default=60)
    parser.add_argument("--facts", type=int, default=4)
    options = parser.parse_args()
    detector = anc.Detector.load(options.detector)
    model = anc.load_model(detector.model["source"], dtype=detector.model["dtype"])
    run = anc.RunView.open(options.run, collected_ok=True)
    entities_asked = {sample.question.entity.casefold() for sample in run.answers}
    unseen = [q for q in anc.load_questions("atlas") if q.entity.casefold() not in entities_asked]
    forms = table_of_forms(detector, model, unseen, options.questions, dataset="atlas")
    print("\n".join(forms), flush=True)
    everyday = (Path(__file__).parent / "everyday.txt").read_text(encoding="utf-8").splitlines()
    for when, ask in (("before", detector.warn), ("after", detector.score)):
        outcomes = Counter(one.outcome for one in ask(model, everyday, dataset="atlas"))
        print(f"everyday questions, {when} the answer: {dict(outcomes)}", flush=True)
    long = paragraphs(unseen, options.answers, facts=options.facts)
    exchanges = [anc.Exchange(question=ASKED, answer=paragraph.text) for paragraph in long]
    print("\n".join(summary(long, detector.score_answers(model, exchanges))))


if __name__ == "__main__":
    main()
