"""Read verdicts that replace the judge's from a file, and list doubtful verdicts.

A row of the file: id "popqa:test:42", right 1. `right` is 1 or 0, true or false, "right" or
"wrong"; the optional `abstained` is 1 where the model declined to answer, and then `right` may be
empty.

A judge by words is wrong most often where an answer is almost an accepted one, or holds one among
other words. Each rule names one such case; the doubt of a verdict, 0 to 1, is that of the strongest
rule. No rule uses states, so a review of these verdicts cannot favour a finding.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from anchorscope.answers.judge import FUNCTION, NEGATORS
from anchorscope.answers.normalise import plain, words
from anchorscope.datasets.rows import rows_by_id
from anchorscope.datasets.source import Row
from anchorscope.errors import UserError, user_path
from anchorscope.records import Sample, Verdict

# --- Verdicts from a file ---


_RIGHT = {"1": True, "true": True, "right": True, "0": False, "false": False, "wrong": False}
ACCEPTED = "1, true or right, and 0, false or wrong"


def read_verdicts(path: str | None) -> dict[str, Verdict]:
    """Read a file of verdicts by question id; empty without a file."""
    if path is None:
        return {}
    verdicts: dict[str, Verdict] = {}
    for number, (id, row) in enumerate(rows_by_id(path, "verdicts", "id and right").items(), 1):
        where = f"Row {number} of {user_path(path).name}"
        if not {"right", "abstained"} & row.keys():
            raise UserError(f"{where} lacks a verdict. Columns needed: id and right.")
        verdicts[id] = _verdict(row, where)
    return verdicts


def _verdict(row: Row, where: str) -> Verdict:
    cells = {name: str(row.get(name) or "0").strip().lower() for name in ("right", "abstained")}
    unreadable = [text for text in cells.values() if text.removesuffix(".0") not in _RIGHT]
    if unreadable:
        raise UserError(f"{where}: '{unreadable[0]}' is no verdict. Accepted: {ACCEPTED}.")
    right, abstained = (_RIGHT[text.removesuffix(".0")] for text in cells.values())
    return "abstain" if abstained else "right" if right else "wrong"


def verdicts_hash(verdicts: Mapping[str, Verdict]) -> str | None:
    """Hash ids and verdicts, independent of the file's name and order."""
    if not verdicts:
        return None
    return hashlib.sha256(json.dumps(sorted(verdicts.items())).encode()).hexdigest()[:16]


def count_verdicts(
    verdicts: Mapping[str, Verdict], ids: Iterable[str], name: str
) -> tuple[dict[str, int], str]:
    """Count the given verdicts on these questions, also as a sentence; a UserError without any."""
    questions = set(ids)
    given = len(questions & verdicts.keys())
    if not given:
        raise UserError(
            f"{name} has no verdict on any of the {len(questions)} questions of this run: the ids "
            f"are others (there: {next(iter(verdicts))}, asked: {min(questions)}). Ids are those "
            "of samples.parquet."
        )
    judged, unknown = len(questions) - given, len(verdicts) - given
    sentence = f"{name} gives the verdict on {given} answers; the judge decides {judged}"
    sentence += f"; {unknown} ids are of no question here" if unknown else ""
    return {"given": given, "judged": judged, "unknown": unknown}, sentence


def flip_verdicts(
    samples: Sequence[Sample], percent: int, *, seed: tuple[int, ...]
) -> list[Sample]:
    """Flip `percent` of the usable verdicts between right and wrong, drawn at random."""
    usable = [number for number, sample in enumerate(samples) if sample.usable]
    rng = np.random.default_rng(seed)
    drawn = rng.choice(usable, size=round(len(usable) * percent / 100), replace=False)
    flipped = list(samples)
    for number in drawn:
        verdict = "right" if samples[number].verdict == "wrong" else "wrong"
        flipped[number] = replace(samples[number], verdict=verdict)
    return flipped


# --- Doubtful verdicts ---


ALIKE = 0.75  # of the letters in their order, from which two spellings are nearly the same
SHORT = 3  # letters up to which an accepted answer is easily matched by accident
HEDGES = {"or", "maybe", "perhaps", "probably", "possibly", "either", "likely", "might"}
_DECLINES = re.compile(
    r"\b(?:(?:do|does|did) ?n[o']?t (?:know|have|recall|remember)|not (?:sure|certain|known)"
    r"|unknown|unclear|no (?:answer|idea|information)|cannot (?:say|tell|answer)|i am unable)\b"
)


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A doubtful verdict: how doubtful it is, and why."""

    id: str
    doubt: float  # 0 to 1
    why: str


def doubt_of(sample: Sample) -> Doubt | None:
    """Find the strongest reason to doubt the verdict on this answer; None if there is none."""
    answer, reasons = _texts(sample.answer.text), []
    for alias in sample.question.answers:
        form = _texts(alias)
        if sample.verdict == "right" and form == answer:
            return None  # the answer is an accepted one, and nothing else
        if form and answer:
            rules = _of_right if sample.verdict == "right" else _of_other
            reasons += rules(answer, form, alias, abstained=sample.verdict == "abstain")
    if sample.verdict == "wrong" and _DECLINES.search(plain(sample.answer.text)):
        reasons.append((0.8, "may decline to answer"))
    if not reasons:
        return None
    doubt, why = max(reasons)
    return Doubt(id=sample.id, doubt=doubt, why=why)


def doubtful(samples: Sequence[Sample]) -> list[tuple[Sample, Doubt]]:
    """List the samples with doubtful verdicts, the most doubtful first."""
    pairs = [(sample, doubt) for sample in samples if (doubt := doubt_of(sample)) is not None]
    pairs.sort(key=lambda pair: (-pair[1].doubt, pair[0].id))
    return pairs


def doubt_table(pairs: Sequence[tuple[Sample, Doubt]]) -> pd.DataFrame:
    """Tabulate doubtful verdicts for correction in a spreadsheet; `read_verdicts` reads it back."""
    rows = [
        {
            "id": sample.id,
            "question": safe_cell(sample.question.text),
            "answer": safe_cell(sample.answer.text),
            "accepted": safe_cell(" | ".join(sample.question.answers)),
            "right": int(sample.verdict == "right"),
            "abstained": int(sample.verdict == "abstain"),
            "why": safe_cell(doubt.why),
        }
        for sample, doubt in pairs
    ]
    columns = ["id", "question", "answer", "accepted", "right", "abstained", "why"]
    return pd.DataFrame(rows, columns=columns)


def safe_cell(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def _texts(text: str) -> list[str]:
    return [word.text for word in words(text)]


Reasons = Iterator[tuple[float, str]]


def _of_right(answer: list[str], form: list[str], alias: str, *, abstained: bool) -> Reasons:
    """Yield reasons why an answer judged right may be wrong."""
    if not _contains(form, answer):
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


def _of_other(answer: list[str], form: list[str], alias: str, *, abstained: bool) -> Reasons:
    """Yield reasons why an answer judged wrong or an abstention may be right."""
    wanted = "".join(form)
    if _contains(form, answer):
        yield 0.95, f"holds the accepted answer '{alias}'"
    elif wanted in "".join(answer) and len(wanted) > SHORT:
        yield 0.8, f"holds '{alias}' inside a word or across words"
    if abstained:
        return
    if len(wanted) > SHORT and not wanted.isdigit():  # as many words with nearly its letters
        size = min(len(form), len(answer))
        parts = {"".join(answer[at : at + size]) for at in range(len(answer) - size + 1)}
        alike = max(SequenceMatcher(None, wanted, part).ratio() for part in parts)
        if ALIKE <= alike < 1:
            yield 0.95 * alike, f"spelled nearly like '{alias}'"
    for number in _numbers(form):
        for other in _numbers(answer):
            if number == other:
                yield 0.85, f"has a number of '{alias}'"
            elif abs(number - other) <= max(1.0, 0.02 * abs(number)):
                yield 0.6, f"a number near that of '{alias}'"
    shared = [word for word in answer if word in form and word not in FUNCTION]
    if shared:
        yield 0.4 + 0.4 * len(shared) / len(form), f"shares '{' '.join(shared)}' with '{alias}'"


def _numbers(texts: Sequence[str]) -> list[float]:
    return [float(text) for text in texts if re.fullmatch(r"-?\d+(?:\.\d+)?", text)]


def _contains(form: list[str], answer: list[str]) -> bool:
    """Whether the answer contains the accepted answer's words in sequence."""
    return any(answer[at : at + len(form)] == form for at in range(len(answer) - len(form) + 1))
