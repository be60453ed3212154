"""Which of several answers mean the same: by our judge's rules, or by an NLI model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from anchorscope.answers.judge import judge
from anchorscope.answers.judge_phrases import is_abstention


@lru_cache(maxsize=2**16)
def same_answer(one: str, other: str, question: str) -> bool:
    """Whether the judge would take one of two answers for right if the other were accepted.

    Either way round, because one of them may be a sentence. All abstentions are alike.
    """
    if is_abstention(one) or is_abstention(other):
        return is_abstention(one) and is_abstention(other)
    return "right" in (judge(a, [b], question=question) for a, b in ((one, other), (other, one)))


def groups(texts: Sequence[str], same: Callable[[str, str], bool]) -> tuple[int, ...]:
    """The group of each text, numbered as they appear: that of the first group whose first text
    means the same, else a new one.
    """
    firsts: list[str] = []
    numbers = []
    for text in texts:
        found = next((n for n, first in enumerate(firsts) if same(first, text)), len(firsts))
        if found == len(firsts):
            firsts.append(text)
        numbers.append(found)
    return tuple(numbers)


def judged(answer: str, texts: Sequence[str], *, question: str) -> tuple[int, ...]:
    """The groups of the greedy answer and the drawn ones, by the judge: the greedy one's is 0."""
    return groups([answer, *texts], lambda one, other: same_answer(one, other, question))
