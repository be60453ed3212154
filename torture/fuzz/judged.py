"""The judge, the words it compares, and the kinds of answers."""

from __future__ import annotations

import unicodedata
from typing import Any

from hypothesis import strategies as st

from anchorscope.answers.judge import judge
from anchorscope.answers.normalise import plain, words
from anchorscope.spans.answer import KINDS, kind_of_answer
from torture.fuzz.target import Target
from torture.fuzz.texts import long_text, part, seeded, text

asked = seeded(lambda r: (text(r), [part(r) for _ in range(r.randint(1, 4))], text(r)))
# Hypothesis' own characters beside ours: it knows other corners, and makes a failure small.
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def check_judge(given: tuple[str, list[str], str]) -> None:
    """A verdict; the same for every way to write the same letters; an alias itself is right."""
    answer, aliases, question = given
    verdict = judge(answer, aliases, question=question)
    assert verdict in ("right", "wrong", "abstain")
    for form in ("NFC", "NFD"):
        again = judge(
            unicodedata.normalize(form, answer),
            [unicodedata.normalize(form, alias) for alias in aliases],
            question=unicodedata.normalize(form, question),
        )
        assert again == verdict, f"{verdict} as given, {again} in {form}"
    assert judge(f" {answer}\t", aliases, question=question) == verdict, "white space counts"
    assert judge(answer, [*aliases, *aliases], question=question) == verdict, "doubles count"
    for alias in aliases:
        assert judge(alias, aliases, question=question) == "right" or not alias.strip()


def check_words(given: str) -> None:
    """Words without empty ones; the same for either normalisation form; any case of ASCII."""
    found = words(given)
    assert all(word.text for word in found)
    for form in ("NFC", "NFD", "NFKC"):
        other = words(unicodedata.normalize(form, given))
        assert [w.text for w in other] == [w.text for w in found], form
    assert plain(given) == plain(plain(given)) or not given.isascii()
    assert kind_of_answer(given) in KINDS


def check_long(given: Any) -> None:
    answer, alias = given
    judge(answer, [alias], question=answer)
    judge(alias, [answer], question=alias)
    kind_of_answer(answer)


TARGETS = (
    Target(name="judge", inputs=asked, check=check_judge, share=15),
    Target(name="words", inputs=seeded(text) | any_text, check=check_words, share=12),
    Target(
        name="judge, long",
        inputs=seeded(lambda r: (long_text(r), part(r))),
        check=check_long,
        share=0.3,
    ),
)
