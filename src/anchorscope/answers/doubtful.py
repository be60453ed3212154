"""Doubtful verdicts: those nearest to the other verdict, with the reason.

A judge that goes by words is wrong most often where an answer is almost an accepted one, or holds
one among other words. Each rule names one such case; the doubt of a verdict, 0 to 1, is that of the
strongest rule. No rule uses states, so a review of these verdicts cannot favour a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from anchorscope.answers.judge_phrases import FUNCTION, NEGATORS
from anchorscope.answers.normalise import plain, words
from anchorscope.records import Sample, Verdict

ALIKE = 0.75  # of the letters in their order, from which two spellings are nearly the same
SHORT = 3  # letters up to which an accepted answer is easily met by accident
HEDGES = {"or", "maybe", "perhaps", "probably", "possibly", "either", "likely", "might"}
_DECLINES = re.compile(
    r"\b(?:(?:do|does|did) ?n[o']?t (?:know|have|recall|remember)|not (?:sure|certain|known)"
    r"|unknown|unclear|no (?:answer|idea|information)|cannot (?:say|tell|answer)|i am unable)\b"
)


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Why a verdict may be the other one."""

    id: str
    doubt: float  # 0 to 1
    why: str


def doubt_of(sample: Sample) -> Doubt | None:
    """The strongest reason to doubt the verdict on this answer; None where there is none."""
    text, aliases = sample.answer.text, sample.question.answers
    rules = _of_right if sample.verdict == "right" else _of_other
    reasons = [reason for alias in aliases for reason in rules(text, alias, sample.verdict)]
    if sample.verdict == "wrong" and _DECLINES.search(plain(text)):
        reasons.append((0.8, "may decline to answer"))
    if sample.verdict == "right" and any(_texts(text) == _texts(alias) for alias in aliases):
        return None  # the answer is an accepted one, and nothing else
    if not reasons:
        return None
    doubt, why = max(reasons)
    return Doubt(id=sample.id, doubt=doubt, why=why)


def doubtful(samples: Sequence[Sample], *, most: int | None = None) -> list[tuple[Sample, Doubt]]:
    """The samples whose verdicts are in doubt, the likeliest to be wrong first."""
    pairs = [(sample, doubt) for sample in samples if (doubt := doubt_of(sample)) is not None]
    pairs.sort(key=lambda pair: (-pair[1].doubt, pair[0].id))
    return pairs[:most]


def _texts(text: str) -> list[str]:
    return [word.text for word in words(text)]


def _of_right(text: str, alias: str, verdict: Verdict) -> Iterator[tuple[float, str]]:
    """Reasons why an answer that was taken for right may be wrong."""
    answer, form = _texts(text), _texts(alias)
    if not form or not _contains(form, answer):
        return
    others = [word for word in answer if word not in form]
    for word in others:
        if word in HEDGES | NEGATORS:
            yield 0.85, f"hedges or denies: '{word}'"
    if _numbers(others):
        yield 0.7, f"names another number beside '{alias}'"
    if len("".join(form)) <= SHORT:
        yield 0.6, f"the accepted answer '{alias}' is very short"
    content = [word for word in others if word not in FUNCTION]
    if content:
        yield 0.3 + 0.4 * len(content) / (len(content) + len(form)), f"says more than '{alias}'"


def _of_other(text: str, alias: str, verdict: Verdict) -> Iterator[tuple[float, str]]:
    """Reasons why an answer that was taken for wrong, or for none, may be right."""
    answer, form = _texts(text), _texts(alias)
    if not form or not answer:
        return
    if _contains(form, answer):
        yield 0.95, f"holds the accepted answer '{alias}'"
    elif "".join(form) in "".join(answer) and len("".join(form)) > SHORT:
        yield 0.8, f"holds '{alias}' inside a word or across words"
    if verdict == "abstain":
        return
    yield from _near_in_letters(answer, form, alias)
    yield from _near_in_numbers(answer, form, alias)
    shared = [word for word in answer if word in form and word not in FUNCTION]
    if shared:
        yield 0.4 + 0.4 * len(shared) / len(form), f"shares '{' '.join(shared)}' with '{alias}'"


def _near_in_letters(answer: list[str], form: list[str], alias: str) -> Iterator[tuple[float, str]]:
    """Nearly the same letters as a stretch of the answer of as many words; numbers have none."""
    wanted = "".join(form)
    if len(wanted) <= SHORT or wanted.isdigit():
        return
    size = min(len(form), len(answer))
    stretches = {"".join(answer[at : at + size]) for at in range(len(answer) - size + 1)}
    alike = max(SequenceMatcher(None, wanted, part).ratio() for part in stretches)
    if ALIKE <= alike < 1:
        yield 0.95 * alike, f"spelled nearly like '{alias}'"


def _near_in_numbers(answer: list[str], form: list[str], alias: str) -> Iterator[tuple[float, str]]:
    for wanted in _numbers(form):
        for number in _numbers(answer):
            if number == wanted:
                yield 0.85, f"has a number of '{alias}'"
            elif abs(number - wanted) <= max(1.0, 0.02 * abs(wanted)):
                yield 0.6, f"a number near that of '{alias}'"


def _numbers(texts: Sequence[str]) -> list[float]:
    return [float(text) for text in texts if re.fullmatch(r"-?\d+(?:\.\d+)?", text)]


def _contains(form: list[str], answer: list[str]) -> bool:
    """Whether the answer contains the words of the accepted one, one after the other."""
    return any(answer[at : at + len(form)] == form for at in range(len(answer) - len(form) + 1))
