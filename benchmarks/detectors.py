"""Test a detector trained on short answers on long ones whose truth is known.

    anchorscope detect collect --data atlas --limit 800 --out runs/atlas
    anchorscope detect train runs/atlas --out detector
    python benchmarks/detectors.py detector runs/atlas [--answers 60] [--facts 4]

Every answer is a paragraph of atlas facts about things that are not in the run. Each fact is wrong
with probability 0.3: it then holds the answer to another question of the same kind.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import anchorscope as anc
from anchorscope.detect.scored import Scored
from anchorscope.records import Question
from anchorscope.stats.ranking import auroc

SENTENCES = {
    "capital": "The capital of {} is {}.",
    "currency": "The currency of {} is the {}.",
    "continent": "{} is in {}.",
    "country": "{} is in {}.",
}
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
                others = [
                    q.answers[0]
                    for q in usable
                    if q.relation == question.relation and q.answers[0] not in question.answers
                ]
                value = str(rng.choice(others))
            sentence = SENTENCES[str(question.relation)].format(question.subjects[0], value)
            text += (" " if text else "") + sentence
            places.append((len(text) - 1 - len(value), len(text) - 1, wrong))
        made.append(Paragraph(text, tuple(places)))
    return made


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
    parser.add_argument("--answers", type=int, default=60)
    parser.add_argument("--facts", type=int, default=4)
    options = parser.parse_args()
    detector = anc.Detector.load(options.detector)
    model = anc.load_model(detector.model["source"], dtype=detector.model["dtype"])
    run = anc.RunView.open(options.run, collected_ok=True)
    entities_asked = {sample.question.entity.casefold() for sample in run.answers}
    unseen = [q for q in anc.load_questions("atlas") if q.entity.casefold() not in entities_asked]
    long = paragraphs(unseen, options.answers, facts=options.facts)
    exchanges = [anc.Exchange(question=ASKED, answer=paragraph.text) for paragraph in long]
    print("\n".join(summary(long, detector.score_answers(model, exchanges))))


if __name__ == "__main__":
    main()
