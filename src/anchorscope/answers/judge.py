"""Verdicts on answers: right, wrong or abstain, from the accepted aliases alone.

The rules, in the order they are tried (see `normalise` for when two spellings are equal):

1. The whole answer is an alias: right, whatever the alias ("Unknown", "no", "Fe").
2. It holds no word, or starts by declining to answer ("I don't know", "n/a"): abstain;
   unless an alias that is such a phrase itself stands in it.
3. All aliases are yes or no: the first word decides. "Yes and no" and anything else is wrong.
4. It hedges: right on one side of an "or" and not on the other, or one of four or more
   short items in a list. Wrong. Up to three items are read as an answer with its place
   ("Paris, Île-de-France, France") or a double answer ("composer and pianist").
5. An alias stands in it, on word borders: right, unless that occurrence
   - is negated ("not Paris"), or follows "than" ("London is larger than Paris");
   - is part of another name ("Guinea" in "Equatorial Guinea", "York" in "New York");
   - is a word of the question repeated with its neighbours ("The capital of the canton of
     Lucerne is Bern" does not answer "Lucerne");
   - is a two-letter alias or a function word ("IN", "us", "The Who") in another case than
     the alias, or where any word may have its capital.
   Where the question offers a choice ("Paris or London?"), the alias has to come before
   the other option and not be joined to it.
6. A bare number for an alias that is this number with a unit, asked "how many ...": right.
7. Everything else is wrong: a part of an alias is not the alias, a year is not a full
   date, "1990s" is not "1990". A more precise answer is right: "14 December 1972" for "1972".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from anchorscope.answers.judge_phrases import (
    FUNCTION,
    NEGATORS,
    NO,
    OTHER_NAMES,
    YES,
    is_abstention,
)
from anchorscope.answers.normalise import Word, words
from anchorscope.errors import UserError
from anchorscope.records import Verdict

Words = tuple[Word, ...]
NEGATION_REACH = 4  # words before the alias: "not think it is Paris"
LIST_LENGTH = 4
LEAD = r"^\s*(?:in|on|at|by|from|during|about|around|approximately|roughly|circa|c\.)\s+(?=\S)"


def judge(answer_text: str, aliases: Sequence[str], *, question: str = "") -> Verdict:
    """The verdict on an answer, given the aliases of the accepted answer."""
    if not aliases:
        raise UserError(
            "A question without accepted answers cannot be judged: give it at least one."
        )
    given, forms = words(answer_text), _forms(aliases)
    if _is_one_of(given, forms) or _spelt_so(answer_text, aliases):
        return "right"
    if is_abstention(answer_text):
        own = [form for alias, form in zip(aliases, map(words, aliases), strict=True)
               if form and is_abstention(alias)]  # fmt: skip
        return "right" if any(_places(given, form) for form in own) else "abstain"
    if all(alias.strip().lower() in ("yes", "no") for alias in aliases):
        return "right" if _yes_or_no(given) in {a.strip().lower() for a in aliases} else "wrong"
    inside = _inside(given, forms)
    if _hedges(given, inside) or _enumerates(answer_text, forms):
        return "wrong"
    asked = words(question)
    stands = any(_stands(given, form, asked, question) for form in inside)
    return "right" if stands or _bare_number(given, forms, asked) else "wrong"


def _spelt_so(answer_text: str, aliases: Sequence[str]) -> bool:
    """Whether the answer is an alias letter by letter: one of symbols alone has no words."""
    return answer_text.strip() in [alias.strip() for alias in aliases if alias.strip()]


def _forms(aliases: Sequence[str]) -> list[Words]:
    """The aliases as words, also without what may be left out of them.

    That is a bracket at the end, "Yellow (colour)", and a small word in front, "In 1840".
    """
    lead = re.compile(LEAD, re.IGNORECASE)
    texts = dict.fromkeys(t for a in aliases for t in (a, _without_bracket(a), lead.sub("", a)))
    return [form for form in map(words, texts) if form]


def _without_bracket(alias: str) -> str:
    """The alias without a bracket at its end; a pattern would try every blank of a long text."""
    bare = alias.rstrip()
    start = bare.rfind("(")
    closed = bare.endswith(")") and bare.find(")", start) == len(bare) - 1
    return bare[:start].rstrip() if closed and start >= 0 else alias


def _texts(form: Sequence[Word]) -> tuple[str, ...]:
    return tuple([word.text for word in form])  # a third faster than without the list


def _is_one_of(given: Words, forms: Sequence[Words]) -> bool:
    """Whether some form has the same words, or the same letters ("Spider-Man", "Spiderman")."""
    texts = _texts(given)
    letters = "".join(texts)
    if not letters.isalpha():
        return any(texts == _texts(form) for form in forms)
    return any(letters == "".join(_texts(form)) for form in forms)


def _inside(given: Words, forms: Sequence[Words]) -> list[Words]:
    """The forms that stand in the answer; a question may have hundreds, and few of them do."""
    texts = set(_texts(given))
    return [form for form in forms if form[0].text in texts and _places(given, form)]


def _places(given: Sequence[Word], form: Sequence[Word]) -> list[int]:
    """Where the words of the form start in the answer, one after the other."""
    texts, wanted, size = _texts(given), _texts(form), len(form)
    return [at for at in range(len(given) - size + 1) if texts[at : at + size] == wanted]


def _yes_or_no(given: Words) -> str | None:
    said = {("yes" if w.text in YES else "no") for w in given if w.text in YES | NO}
    first = given[0].text if given else ""  # an emoji is an answer without words
    joined = len(given) > 1 and given[1].text in ("and", "or") and len(said) == 2
    if joined or first not in YES | NO:
        return None
    return "yes" if first in YES else "no"


def _hedges(given: Words, forms: Sequence[Words]) -> bool:
    """Whether an alias stands on one side of an "or" and none on another."""
    inside = {at + i for form in forms for at in _places(given, form) for i in range(len(form))}
    bars = [i for i, word in enumerate(given) if word.text == "or" and i not in inside]
    edges = [-1, *bars, len(given)]
    sides = [given[a + 1 : b] for a, b in pairwise(edges)]
    hits = [any(_places(side, form) for form in forms) for side in sides if side]
    return any(hits) and not all(hits)


def _enumerates(answer_text: str, forms: Sequence[Words]) -> bool:
    items = [words(item) for item in re.split(r",\s|;|\band\b|\bor\b", answer_text)]
    items = [item for item in items if item]
    if len(items) < LIST_LENGTH or any(len(item) > 4 for item in items):
        return False
    hits = [_is_one_of(item, forms) for item in items]
    return any(hits) and not all(hits)


def _stands(given: Words, form: Words, asked: Words, question: str) -> bool:
    """Whether the alias stands in the answer as its answer (rule 5)."""
    choice = any(word.text == "or" for word in asked)
    rival = _rival(question, form) if choice else None
    for at in _places(given, form):
        stop = at + len(form)
        spoilt = (
            _negated(given, at)
            or (at > 0 and given[at - 1].text == "than" and not form[0].text[0].isdigit())
            or _in_other_name(given, at, stop)
            or not _written_alike(given[at], form)
            or (not choice and _echoed(given, at, stop, asked))
            or (rival is not None and _beside_rival(given, at, stop, rival))
        )
        if not spoilt:
            return True
    return False


def _negated(given: Words, at: int) -> bool:
    for back in range(at - 1, max(-1, at - 1 - NEGATION_REACH), -1):
        if given[back + 1].gap:
            return False
        if given[back].text in NEGATORS:
            return given[back + 1].text != "only"
    return False


def _in_other_name(given: Words, at: int, stop: int) -> bool:
    if at > 0 and given[at - 1].raw == "New" and not given[at].gap and given[at].raw[0].isupper():
        return True
    for name in OTHER_NAMES:
        start = [i for i in range(at - len(name) + 1, at + 1) if i >= 0]
        if len(name) > stop - at and any(
            _texts(given[i : i + len(name)]) == name and i + len(name) >= stop for i in start
        ):
            return True
    return False


def _written_alike(word: Word, form: Words) -> bool:
    """Whether a very short or idle alias is written as in the alias, with a telling capital."""
    alias = form[0]
    cased = alias.raw.lower() != alias.raw.upper()
    idle = alias.text in FUNCTION
    if len(form) > 1 or not cased or alias.text[0].isdigit() or (len(alias.text) > 2 and not idle):
        return True
    opening = word.first and idle and not (len(word.raw) > 1 and word.raw.isupper())
    return word.raw == alias.raw and alias.raw != alias.raw.lower() and not opening


def _echoed(given: Words, at: int, stop: int, asked: Words) -> bool:
    """Whether the words beside the alias, and the alias, are the question's own phrase."""
    for start in _places(asked, given[at:stop]):
        end = start + stop - at
        beside = [*_run(given, asked, at, start, -1), *_run(given, asked, stop - 1, end - 1, 1)]
        if any(text not in FUNCTION for text in beside):
            return True
    return False


def _run(given: Words, asked: Words, i: int, j: int, step: int) -> Iterator[str]:
    """The words that answer and question share onwards from i and j, up to punctuation."""
    while 0 <= i + step < len(given) and 0 <= j + step < len(asked):
        later_i, later_j = max(i, i + step), max(j, j + step)
        if given[later_i].gap or asked[later_j].gap or given[i + step].text != asked[j + step].text:
            return
        i, j = i + step, j + step
        yield given[i].text


def _rival(question: str, form: Words) -> str | None:
    """A word of the other option, where the question says "alias or other"."""
    left, _, right = re.sub(r"[?!.\s]+$", "", question).rpartition(" or ")
    before, after = words(re.split(r"[,:;]", left.rstrip(","))[-1]), words(right)
    other = after[:1] if _places(before, form) else before[-1:] if _places(after, form) else ()
    return other[0].text if other and other[0].text not in _texts(form) else None


def _beside_rival(given: Words, at: int, stop: int, rival: str) -> bool:
    """Whether the other option comes before the alias, or is joined to it after it."""
    if any(word.text == rival for word in given[:at]):
        return True
    later = [i for i in range(stop, len(given)) if given[i].text == rival]
    return bool(later) and all(w.text in ("and", "or") for w in given[stop : later[0]])


def _bare_number(given: Words, forms: Sequence[Words], asked: Words) -> bool:
    """Whether the answer is a number alone and an alias that number with its unit."""
    if len(given) != 1 or not given[0].text.isdigit() or not any(w.text == "how" for w in asked):
        return False
    units = [form[1:] for form in forms if form[0].text == given[0].text and len(form) in (2, 3)]
    return any(all(word.text.isalpha() for word in unit) for unit in units)
