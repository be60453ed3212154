"""Verdicts on answers: right, wrong or abstain, from the accepted aliases alone.

The rules, in the order they are tried (see `normalise` for when two spellings are equal):

1. The whole answer is an alias: right, whatever the alias ("Unknown", "no", "Fe").
2. It holds no word, or starts by declining to answer ("I don't know", "n/a"): abstain;
   unless it contains an alias that is such a phrase itself.
3. All aliases are yes or no: the first word decides. "Yes and no" and anything else is wrong.
4. It hedges: right on one side of an "or" and not on the other, or one of four or more
   short items in a list. Wrong. Up to three items are read as an answer with its place
   ("Paris, Île-de-France, France") or a double answer ("composer and pianist").
5. It contains an alias, on word borders: right, unless that occurrence
   - is negated ("not Paris"), or follows "than" ("London is larger than Paris");
   - is part of another name ("Guinea" in "Equatorial Guinea", "York" in "New York");
   - is a word of the question repeated with its neighbours ("The capital of the canton of
     Lucerne is Bern" does not answer "Lucerne");
   - is a two-letter alias or a function word ("IN", "us", "The Who") in another case than
     the alias, or where any word may have its capital.
   Where the question offers a choice ("Paris or London?"), the alias has to come before
   the other option and not be joined to it.
6. A bare number for an alias that is this number with a unit, after "how many ...": right.
7. Everything else is wrong: a part of an alias is not the alias, a year is not a full
   date, "1990s" is not "1990". A more precise answer is right: "14 December 1972" for "1972".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

from anchorscope.answers.normalise import Word, plain, words
from anchorscope.errors import UserError
from anchorscope.records import Verdict

# --- Phrases the judge knows ---


def _set(text: str, mark: str | None = None) -> frozenset[str]:
    return frozenset(text.split(mark))


# Words that say nothing by themselves: an alias that is one of them ("IN" for India, the
# band "The Who") is not found by meeting that word in a sentence.
FUNCTION = _set(
    "a an the i it he she we they them us me him her you is are was were be been am do does did "
    "has have had can could will would may might must in on at of to by from for with as and or "
    "but if so no not yes all any who what when where which why how that this these those its "
    "his their there than then"
)
NEGATORS = _set(
    "not never neither nor isnt wasnt arent werent doesnt didnt dont cannot cant except"
)
YES = _set("yes yeah yep true correct")
NO = _set("no nope false incorrect")
# Other things whose names hold a shorter name; "New X" is ruled out for every X.
OTHER_NAMES = tuple(
    words(name)
    for name in (
        "equatorial guinea", "guinea bissau", "south sudan", "northern ireland", "west virginia",
        "american samoa", "democratic republic of congo", "democratic republic of korea",
        "kansas city", "mexico city", "panama city", "guatemala city", "kuwait city",
    )
)  # fmt: skip
_AT_START = re.compile(
    r"(?:(?:well|sorry|im sorry|i am sorry|unfortunately|hmm|honestly|i think|but"
    r"|as an ai(?: language)?(?: model)?) )*"
    r"(?:"
    r"(?:i )?(?:really |honestly |just |still )?(?:do not|dont|did not|didnt) (?:really )?"
    r"(?:know|have (?:an?y?|the|enough|access|sufficient|information)|remember|recall)"
    r"|(?:im|i am|am) (?:really )?(?:not (?:\w+ )?(?:sure|certain|aware|familiar|able)"
    r"|unsure|unable|unaware|uncertain)"
    r"|i (?:cannot|cant|can not|could not|couldnt) (?:\w+ )?"
    r"(?:answer|say|tell|find|determine|provide|verify|recall|remember|help|identify|confirm)"
    r"|(?:im|i am) (?:really |so |very )?sorry (?:but|for|i|to|if|about)\b|i apologi[sz]e"
    r"|i have no (?:idea|information|knowledge|clue)"
    r"|(?:cannot|cant|can not|unable to|impossible to) (?:be )?"
    r"(?:answer|determine|say|tell|know|find|identif|verif)\w*"
    r"|no (?:answer|idea|information|clue|data)\b"
    r"|not (?:sure|certain|known|specified|mentioned|available|applicable|provided|stated|given"
    r"|enough information|clear)"
    r"|(?:there is|theres) (?:no|not enough|insufficient) (?:\w+ )?"
    r"(?:information|record|evidence|data|answer)"
    r"|insufficient information|(?:nobody|no one) knows|idk\b"
    r"|(?:it|this|that|(?:the|his|her|their|its)(?: \w+){1,6}) (?:is|was|are|were|remains?) "
    r"(?:not (?:\w+ )?(?:known|clear|specified|mentioned|stated|provided|available)"
    r"|(?:unknown|unclear|uncertain|unspecified)$)"
    r"|its (?:not (?:known|clear)|unknown|unclear)"
    r"|(?:the|this) (?:question|text|passage|context|information) (?:does not|doesnt|is not|isnt) "
    r")"
)
_WHOLE = _set(
    "unknown|the unknown|unclear|uncertain|unsure|undetermined|unspecified|undisclosed|tbd"
    "|to be determined|not known|no comment|unanswerable",
    "|",
)


def is_abstention(text: str) -> bool:
    """Whether the answer starts by declining to answer, is such a phrase, or holds no word."""
    # "n/a" before punctuation goes: "Na" is sodium.
    head = re.split(r"[.,;:(!?]", text.strip(), maxsplit=1)[0]
    bare = plain(text)
    if not bare:  # an emoji is an answer, a row of dots is not
        return all(unicodedata.category(c)[0] in "PZC" for c in text)
    if re.match(r"\W*n\s*/\s*a\b", text, re.IGNORECASE):
        return True
    return plain(head) in _WHOLE or bare in _WHOLE or bool(_AT_START.match(bare))


# --- The judge ---


Words = tuple[Word, ...]
NEGATION_REACH = 4  # words before the alias: "not think it is Paris"
LIST_LENGTH = 4
LEAD = r"^\s*(?:in|on|at|by|from|during|about|around|approximately|roughly|circa|c\.)\s+(?=\S)"


def judge(answer_text: str, aliases: Sequence[str], *, question: str = "") -> Verdict:
    """Judge an answer right, wrong or abstain by the aliases of the accepted answer."""
    if not aliases:
        raise UserError(
            "A question without accepted answers cannot be judged: give it at least one."
        )
    answer, forms = words(answer_text), _forms(aliases)
    # An alias of symbols alone has no words: letter by letter.
    spelt = answer_text.strip() in [alias.strip() for alias in aliases if alias.strip()]
    if spelt or _is_one_of(answer, forms):
        return "right"
    if is_abstention(answer_text):
        own = [form for alias, form in zip(aliases, map(words, aliases), strict=True)
               if form and is_abstention(alias)]  # fmt: skip
        return "right" if any(_places(answer, form) for form in own) else "abstain"
    if all(alias.strip().lower() in ("yes", "no") for alias in aliases):
        return "right" if _yes_or_no(answer) in {a.strip().lower() for a in aliases} else "wrong"
    texts = set(_texts(answer))  # few of the hundreds of forms that a question may have
    inside = [form for form in forms if form[0].text in texts and _places(answer, form)]
    if _hedges(answer, inside) or _enumerates(answer_text, forms):
        return "wrong"
    question_words = words(question)
    found = any(_answers_by(answer, form, question_words, question) for form in inside)
    return "right" if found or _bare_number(answer, forms, question_words) else "wrong"


def _forms(aliases: Sequence[str]) -> list[Words]:
    """Normalise the aliases to words, with and without their optional parts.

    That is a bracket at the end, "Yellow (colour)", and a small word in front, "In 1840".
    """
    lead = re.compile(LEAD, re.IGNORECASE)
    texts = dict.fromkeys(t for a in aliases for t in (a, _without_bracket(a), lead.sub("", a)))
    return [form for form in map(words, texts) if form]


def _without_bracket(alias: str) -> str:
    """Drop a bracket at the end of an alias; a pattern would take quadratic time."""
    bare = alias.rstrip()
    start = bare.rfind("(")
    closed = bare.endswith(")") and bare.find(")", start) == len(bare) - 1
    return bare[:start].rstrip() if closed and start >= 0 else alias


def _texts(form: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.text for word in form)


def _is_one_of(answer: Words, forms: Sequence[Words]) -> bool:
    """Whether some form has the same words, or the same letters ("Spider-Man", "Spiderman")."""
    texts = _texts(answer)
    letters = "".join(texts)
    if not letters.isalpha():
        return any(texts == _texts(form) for form in forms)
    return any(letters == "".join(_texts(form)) for form in forms)


def _places(answer: Sequence[Word], form: Sequence[Word]) -> list[int]:
    """Find where the form's words occur in the answer in sequence."""
    texts, wanted, size = _texts(answer), _texts(form), len(form)
    return [at for at in range(len(answer) - size + 1) if texts[at : at + size] == wanted]


def _yes_or_no(answer: Words) -> str | None:
    sides = {("yes" if w.text in YES else "no") for w in answer if w.text in YES | NO}
    first = answer[0].text if answer else ""  # an emoji is an answer without words
    joined = len(answer) > 1 and answer[1].text in ("and", "or") and len(sides) == 2
    if joined or first not in YES | NO:
        return None
    return "yes" if first in YES else "no"


def _hedges(answer: Words, forms: Sequence[Words]) -> bool:
    """Whether an alias is on one side of an "or" and none on another."""
    inside = {at + i for form in forms for at in _places(answer, form) for i in range(len(form))}
    bars = [i for i, word in enumerate(answer) if word.text == "or" and i not in inside]
    edges = [-1, *bars, len(answer)]
    sides = [answer[a + 1 : b] for a, b in pairwise(edges)]
    hits = [any(_places(side, form) for form in forms) for side in sides if side]
    return any(hits) and not all(hits)


def _enumerates(answer_text: str, forms: Sequence[Words]) -> bool:
    items = [words(item) for item in re.split(r",\s|;|\band\b|\bor\b", answer_text)]
    items = [item for item in items if item]
    if len(items) < LIST_LENGTH or any(len(item) > 4 for item in items):
        return False
    hits = [_is_one_of(item, forms) for item in items]
    return any(hits) and not all(hits)


def _answers_by(answer: Words, form: Words, question_words: Words, question: str) -> bool:
    """Whether the answer contains the alias as its answer (rule 5)."""
    choice = any(word.text == "or" for word in question_words)
    rival = _rival(question, form) if choice else None
    for at in _places(answer, form):
        stop = at + len(form)
        spoilt = (
            _negated(answer, at)
            or (at > 0 and answer[at - 1].text == "than" and not form[0].text[0].isdigit())
            or _in_other_name(answer, at, stop)
            or not _written_alike(answer[at], form)
            or (not choice and _echoed(answer, at, stop, question_words))
            or (rival is not None and _beside_rival(answer, at, stop, rival))
        )
        if not spoilt:
            return True
    return False


def _negated(answer: Words, at: int) -> bool:
    for back in range(at - 1, max(-1, at - 1 - NEGATION_REACH), -1):
        if answer[back + 1].gap:
            return False
        if answer[back].text in NEGATORS:
            return answer[back + 1].text != "only"
    return False


def _in_other_name(answer: Words, at: int, stop: int) -> bool:
    before, first = answer[at - 1] if at else None, answer[at]
    if before and before.raw == "New" and not first.gap and first.raw[0].isupper():
        return True
    return any(
        start <= at and stop <= start + len(name) and len(name) > stop - at
        for name in OTHER_NAMES
        for start in _places(answer, name)
    )


def _written_alike(word: Word, form: Words) -> bool:
    """Whether a very short alias or function word has the alias's own capitals."""
    alias = form[0]
    cased = alias.raw.lower() != alias.raw.upper()
    idle = alias.text in FUNCTION
    if len(form) > 1 or not cased or alias.text[0].isdigit() or (len(alias.text) > 2 and not idle):
        return True
    opening = word.first and idle and not (len(word.raw) > 1 and word.raw.isupper())
    return word.raw == alias.raw and alias.raw != alias.raw.lower() and not opening


def _echoed(answer: Words, at: int, stop: int, question_words: Words) -> bool:
    """Whether the alias and its neighbours only repeat a phrase of the question."""
    for start in _places(question_words, answer[at:stop]):
        end = start + stop - at
        beside = [
            *_run(answer, question_words, at, start, -1),
            *_run(answer, question_words, stop - 1, end - 1, 1),
        ]
        if any(text not in FUNCTION for text in beside):
            return True
    return False


def _run(answer: Words, question_words: Words, i: int, j: int, step: int) -> Iterator[str]:
    """Yield the words that answer and question share from i and j on, up to punctuation."""
    while 0 <= i + step < len(answer) and 0 <= j + step < len(question_words):
        gap = answer[max(i, i + step)].gap or question_words[max(j, j + step)].gap
        i, j = i + step, j + step
        if gap or answer[i].text != question_words[j].text:
            return
        yield answer[i].text


def _rival(question: str, form: Words) -> str | None:
    """A word of the other option, if the question offers "alias or other"."""
    left, _, right = re.sub(r"[?!.\s]+$", "", question).rpartition(" or ")
    before, after = words(re.split(r"[,:;]", left.rstrip(","))[-1]), words(right)
    other = after[:1] if _places(before, form) else before[-1:] if _places(after, form) else ()
    return other[0].text if other and other[0].text not in _texts(form) else None


def _beside_rival(answer: Words, at: int, stop: int, rival: str) -> bool:
    """Whether the other option comes before the alias, or is joined to it after it."""
    if any(word.text == rival for word in answer[:at]):
        return True
    later = [i for i in range(stop, len(answer)) if answer[i].text == rival]
    return bool(later) and all(w.text in ("and", "or") for w in answer[stop : later[0]])


def _bare_number(answer: Words, forms: Sequence[Words], question_words: Words) -> bool:
    """Whether the answer is a bare number, and an alias is that number with a unit."""
    if len(answer) != 1 or not answer[0].text.isdigit() or "how" not in _texts(question_words):
        return False
    units = [form[1:] for form in forms if form[0].text == answer[0].text and len(form) in (2, 3)]
    return any(all(word.text.isalpha() for word in unit) for unit in units)
