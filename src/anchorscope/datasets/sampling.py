"""Which questions are used: one of each, and a sample that growing data does not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from anchorscope.datasets.source import Draft
from anchorscope.datasets.text import digest, normalised
from anchorscope.errors import UserError
from anchorscope.records import Question


def without_doubles(drafts: Iterable[Draft]) -> tuple[list[Question], dict[str, int]]:
    """The questions that stand for themselves, and how many were left out for which reason.

    Of questions with the same text and answers one stays; of questions with the same text and
    other answers none does, and none that its dataset calls ambiguous.
    """
    same_text: dict[str, list[Draft]] = {}
    for draft in drafts:
        same_text.setdefault(normalised(draft.question.text), []).append(draft)
    kept: list[Question] = []
    dropped: Counter[str] = Counter()
    for group in same_text.values():
        double = len(group) > 1
        several = double and len(set(map(_answers, group))) > 1
        if several or any(draft.ambiguous for draft in group):
            dropped["ambiguous"] += len(group)
            continue
        questions = [draft.question for draft in group]
        kept.append(min(questions, key=_order) if double else questions[0])
        dropped["duplicate"] += len(group) - 1
    return kept, {reason: count for reason, count in sorted(dropped.items()) if count}


def _answers(draft: Draft) -> frozenset[str]:
    return frozenset(normalised(answer) for answer in draft.question.answers)


def _order(question: Question) -> tuple[str, str]:
    """By id; rows without one that differ in popularity alone share it, and none may come first."""
    return question.id, repr(question)


def check_limit(limit: int | None) -> None:
    """Raises where the limit is no positive whole number."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise UserError(
            f"limit must be a whole number of questions, at least 1, not {limit!r}. "
            "Leave it out to take them all."
        )


def sample(questions: Iterable[Question], limit: int | None, seed: int) -> tuple[Question, ...]:
    """The `limit` questions with the smallest hash of seed and id, in the order of that hash.

    So a larger limit extends a smaller one, the order of the file does not matter, and new rows
    do not move old ones.
    """
    ranked = sorted(questions, key=lambda question: (digest(seed, question.id), question.id))
    return tuple(ranked[:limit])
