"""Phrases the judge knows: abstentions, function words, and names inside other names."""

from __future__ import annotations

import re
import unicodedata

from anchorscope.answers.normalise import plain


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
    tuple(name.split())
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
