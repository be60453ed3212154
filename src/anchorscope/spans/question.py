"""Find the exact question tokens as character spans, and measure how far two finders agree.

A finder marks the subject: from the dataset (`given`), by rules, by the model under test itself
(text in, text out), by a spaCy pipeline, or the whole question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorscope.config import Finder
from anchorscope.datasets.text import normalised
from anchorscope.errors import UserError
from anchorscope.records import Question, Span
from anchorscope.run_folder import table_columns
from anchorscope.spans.characters import (
    FUNCTION_WORDS,
    STOP,
    WORD,
    content_words,
    longest,
    merged,
    occurrences,
    overlap,
    plain_word,
    trimmed,
    word_set,
)

if TYPE_CHECKING:
    from spacy.language import Language

# --- Finders ---


SpansById = Mapping[str, tuple[Span, ...]]


@dataclass(frozen=True, kw_only=True)
class QuestionSpans:
    """The spans of one question, subject and property, and the finder of the subject.

    The finder is never "auto". `property_spans` are the spans that name the property.
    """

    id: str
    finder: str
    spans: tuple[Span, ...]  # E_Q
    property_spans: tuple[Span, ...] = ()

    @property
    def subject_spans(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span not in self.property_spans)


def find_spans(
    questions: Sequence[Question],
    *,
    finder: Finder,
    generate: Generate | None = None,
) -> list[QuestionSpans]:
    """Find the exact question spans of each question with the chosen finder.

    `auto` takes the dataset's subjects where it has them, else the rules, else the whole
    question. Every finder looks for the subject; the words that name the property asked for belong
    to E_Q as well, and are found in one way for all finders (`property_spans`).
    `generate` is for "model" alone.
    """
    if finder == "auto":
        return [_first_found(question) for question in questions]
    if finder == "model":
        assert generate is not None
        replies = generate([model_prompt(question.text) for question in questions])
        spans = [read_reply(q.text, reply) for q, reply in zip(questions, replies, strict=True)]
    elif finder == "spacy":
        spans = spacy_spans(questions)
    else:
        spans = [_TEXT_FINDERS[finder](question) for question in questions]
    return [
        _with_property(question, finder, marked)
        for question, marked in zip(questions, spans, strict=True)
    ]


def _with_property(question: Question, finder: str, subject: tuple[Span, ...]) -> QuestionSpans:
    """Add the property's spans to the subject's; nothing if no subject was found."""
    more = property_spans(question.text, subject) if subject else ()
    spans = tuple(sorted([*subject, *more]))
    return QuestionSpans(id=question.id, finder=finder, spans=spans, property_spans=more)


def given_spans(question: Question) -> tuple[Span, ...]:
    """Find every occurrence of the question's own subjects."""
    spans: list[Span] = []
    for subject in question.subjects:
        found = occurrences(question.text, subject)
        if not found and subject.strip() and subject in question.text:  # inside a longer word
            at = question.text.index(subject)
            found = (Span(at, at + len(subject)),)
        spans += found
    return merged(spans)


def all_spans(question: Question) -> tuple[Span, ...]:
    """Mark the whole question, without white space and punctuation at its ends."""
    return merged([trimmed(question.text, Span(0, len(question.text)))])


_TEXT_FINDERS: dict[str, Callable[[Question], tuple[Span, ...]]] = {
    "given": given_spans,
    "rules": lambda question: rules_spans(question.text),
    "all": all_spans,
}


def _first_found(question: Question) -> QuestionSpans:
    for finder, find in _TEXT_FINDERS.items():
        if spans := find(question):
            return _with_property(question, finder, spans)
    return QuestionSpans(id=question.id, finder="all", spans=())


def spans_table(questions: Sequence[Question]) -> pd.DataFrame:
    """Tabulate how far the finders without a model agree, by dataset."""
    finders: tuple[Finder, ...] = ("given", "rules", "all")
    found = {name: find_spans(questions, finder=name) for name in finders}
    return agreement(
        questions, {name: {q.id: q.spans for q in spans} for name, spans in found.items()}
    )


def agreement(
    questions: Sequence[Question], found_by_finder: Mapping[str, SpansById]
) -> pd.DataFrame:
    """Tabulate how far each pair of finders agrees on each dataset.

    jaccard: mean over questions of shared / all marked characters; identical: the share of
    questions marked alike. Both are NaN where no question has both.
    """
    rows = []
    for dataset in dict.fromkeys(question.dataset for question in questions):
        ids = [question.id for question in questions if question.dataset == dataset]
        for a, b in combinations(found_by_finder, 2):
            both = [(found_by_finder[a].get(id), found_by_finder[b].get(id)) for id in ids]
            scores = [overlap(one, other) for one, other in both if one and other]
            n = len(scores)
            jaccard = float(np.mean(scores)) if n else np.nan
            identical = float(np.mean([s == 1 for s in scores])) if n else np.nan
            rows.append((dataset, a, b, n, jaccard, identical))
    return pd.DataFrame(rows, columns=list(table_columns.SPANS))


# --- The subject by rules: names and quotations, else the content words ---


# Bounded: a text of nothing but opening marks would be read to its end from each of them.
QUOTED = re.compile(
    r'"([^"]{1,300})"|“([^”]{1,300})”|«([^»]{1,300})»|'
    r"(?<!\w)['‘]([^'‘’]{1,300}(?:['’]\w[^'‘’]{0,300}){0,8})['’](?!\w)"
)
# Small words that may come between two capitalised words of one name.
CONNECTORS = word_set(
    "of the de la le du da do dos das di del della von van der den zu bin ibn al el y"
)
# Capitalised because they open the sentence, not because they name something.
OPENERS = STOP | word_set(
    "find tell list according along near among within although despite besides like upon"
)
ABBREVIATION = re.compile(r"(?:[A-Z]|St|Dr|Mr|Mrs|Ms|Mt|Ft|Jr|Sr|No|vs)")

LOOK_BACK = 64  # characters


def rules_spans(text: str) -> tuple[Span, ...]:
    """Mark names, quotations and numbers, or runs of content words where there is no name.

    A number alone counts as no name: in "season 6 downton abbey" the other words matter more.
    """
    names = [*_quoted(text), *_names(text)]
    numbers = re.finditer(r"\d+(?:[.,]\d+)*(?:[^\W\d_]+)?", text)
    spans = merged([*names, *(Span(*n.span()) for n in numbers)]) if names else _content(text)
    return _join_words(text, spans)  # "1980 Winter Olympics": number and name side by side


def _quoted(text: str) -> Iterator[Span]:
    for match in QUOTED.finditer(text):
        span = trimmed(text, Span(*match.span(match.lastindex or 0)))
        if span.start < span.stop:
            yield span


def _names(text: str) -> Iterator[Span]:
    """Find runs of capitalised words, with connectors and numbers inside them."""
    runs: list[list[re.Match[str]]] = [[]]
    held: list[re.Match[str]] = []  # connectors that wait for the next capital
    for word in WORD.finditer(text):
        last = (held or runs[-1])[-1] if runs[-1] else None
        if last and not _joined(text[last.end() : word.start()], last[0]):
            runs, held = [*runs, []], []
        run = runs[-1]
        if _capital(text, word) or (run and not held and word[0][0].isdigit()):
            run += [*held, word]
            held = []
        elif run and word[0] in CONNECTORS:
            held.append(word)
        elif run:
            runs, held = [*runs, []], []
    for run in filter(None, runs):
        possessive = re.search(r"['’]s$", run[-1][0])
        yield Span(run[0].start(), run[-1].end() - (2 if possessive else 0))


def _joined(between: str, word: str) -> bool:
    if between == " " or re.fullmatch(r"\s+|\s*[&/]\s*", between):
        return True
    return bool(re.fullmatch(r"\.\s+", between) and ABBREVIATION.fullmatch(word))


def _capital(text: str, word: re.Match[str]) -> bool:
    """Whether the word is written as a name, and not only because it opens a sentence."""
    if word[0].islower() or not any(c.isupper() for c in word[0]):
        return False
    if word[0] == "I":  # a name only beside another capital: "I Wish You Would", "Corey I. Sanders"
        following = WORD.search(text, word.end())
        return following is not None and following[0][0].isupper()
    # As far back as a sentence's end can be: the whole text again for each word takes minutes.
    before = text[max(0, word.start() - LOOK_BACK) : word.start()].rstrip(" \"'“‘(")
    opens = not before or (before[-1] in ".?!:" and not re.search(r"\b[A-Z]\.$", before))
    return not (opens and word[0].lower() in OPENERS)


def _content(text: str) -> list[Span]:
    """Find the words that are not stop words."""
    words = WORD.finditer(text)
    return [Span(*w.span()) for w in words if re.sub(r"['’]s$", "", w[0].lower()) not in STOP]


# --- The property asked for: the noun or verb phrase behind the question word ---


# What is asked for, or who, when and where it is: the former name the property more often.
_NAMING = word_set("what which whose how")
_ASKING = _NAMING | word_set("who whom when where why")
# A noun in place of the one behind it: "the name of the ship", "what kind of bird".
_LIGHT = word_set("name names named called kind kinds type types sort sorts term word")
_LONGEST = 2000  # characters of a text in which a property is looked for


def property_spans(text: str, subject: Sequence[Span]) -> tuple[Span, ...]:
    """Find the words that name the property asked for, outside the subject's spans.

    "What country is Osaka in?" asks for "country", "Who wrote Emma?" for "wrote", "When did the
    Berlin Wall fall?" for "fall". It is the first run of content words behind the question word
    that is more than the subject; where nothing follows ("was born when?"), the last one before it;
    without a question word ("Are both painters?") the first of all. In a choice ("Which city is
    further north, Oslo or Rome?") the noun behind "which" says what the two are, and the next run
    ("further north") what is asked about them.
    """
    if len(text) > _LONGEST:  # no question: the search grows with the square of the words
        return ()
    word, at = _asking_word(text)
    clause = _clause(text, at)
    runs = [run for run in _runs(text) if clause.start <= run[0].start < clause.stop]
    runs = [run for run in runs if any(_names_property(text, word, subject) for word in run)]
    after = [run for run in runs if run[0].start >= at]
    between = (text[a.stop : b.start] for a, b in pairwise(subject))
    is_choice = any(re.fullmatch(r",?\s+or\s+(?:the\s+|an?\s+)?", gap) for gap in between)
    if len(after) > 1 and word in ("what", "which") and is_choice:
        after = after[1:] if text[at : after[0][0].start].isspace() else after
    run = after[0] if after else runs[-1] if runs else []
    # In "does the river Po end" the words in front of the name say what it is, those behind it what
    # is asked; in "wrote Emma" there are none behind it.
    last = max((n for n, word in enumerate(run) if _overlaps(word, subject)), default=-1)
    words = run[last + 1 :] or [word for word in run if not _overlaps(word, subject)]
    return _join_words(text, words)


def _asking_word(text: str) -> tuple[str, int]:
    """Find the question word and where it ends; ("", 0) if there is none.

    Of several the one that opens the question, else the last that names what is asked for: in "the
    arena where they played seats how many people?" the first is none.
    """
    words = [(plain_word(word[0]), word.end()) for word in WORD.finditer(text)]
    asking = [(word, end) for word, end in words if word in _ASKING]
    opening = [pair for pair in words[:2] if pair in asking and words[0][0] in FUNCTION_WORDS]
    naming = [pair for pair in asking if pair[0] in _NAMING]
    chosen = opening[:1] or naming[-1:] or asking[-1:]
    return chosen[0] if chosen else ("", 0)


def _clause(text: str, at: int) -> Span:
    """The clause around a position, between question marks, colons and semicolons."""
    marks = [match.start() for match in re.finditer(r"[?!:;]", text)]
    start = max((mark for mark in marks if mark < at), default=0)
    return Span(start, min((mark for mark in marks if mark >= at), default=len(text)))


def _runs(text: str) -> list[list[Span]]:
    """Group content words into runs; function words and punctuation separate runs."""
    runs: list[list[Span]] = []
    for word in content_words(text):
        between = text[runs[-1][-1].stop : word.start] if runs else ""
        if runs and re.fullmatch(r"(?:['’]s)?\s+", between):
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _names_property(text: str, word: Span, subject: Sequence[Span]) -> bool:
    return not _overlaps(word, subject) and text[word.start : word.stop].lower() not in _LIGHT


def _overlaps(word: Span, spans: Iterable[Span]) -> bool:
    return any(word.start < span.stop and span.start < word.stop for span in spans)


def _join_words(text: str, words: Iterable[Span]) -> tuple[Span, ...]:
    """Join sorted spans with only white space between them into one."""
    spans: list[Span] = []
    for word in words:
        if spans and text[spans[-1].stop : word.start].isspace():
            spans[-1] = Span(spans[-1].start, word.stop)
        else:
            spans.append(word)
    return tuple(spans)


# --- The finder `model` ---


Generate = Callable[[Sequence[str]], Sequence[str]]
EXAMPLES = (
    ("Who was the director of The Third Man?", "director; The Third Man"),
    ("what is the longest river in south america", "longest river; south america"),
    ("Which mountain is higher, Ben Nevis or Snowdon?", "mountain; Ben Nevis; Snowdon"),
    ("In what year did the Berlin Wall fall?", "year; Berlin Wall"),
)


def model_prompt(question: str) -> str:
    """Make the few-shot prompt that asks a model for the words a question is about."""
    head = "Copy from each question the words that name what it asks about, separated by ';'.\n\n"
    shots = "".join(f"Question: {text}\nWords: {words}\n\n" for text, words in EXAMPLES)
    return f"{head}{shots}Question: {' '.join(question.split())}\nWords:"


def read_reply(text: str, reply: str) -> tuple[Span, ...]:
    """Find the pieces of the reply's first line in the question."""
    line = next(iter(reply.strip().splitlines()), "")
    spans: list[Span] = []
    for piece in dict.fromkeys(line.split(";")):
        # A name may hold a comma, so the piece is tried whole first.
        whole = _find(text, piece)
        spans += whole or (span for part in piece.split(",") for span in _find(text, part))
    return merged(spans)


def _find(text: str, piece: str) -> tuple[Span, ...]:
    bare = re.sub(r"^[\s\"'“‘*\-]+|[\s\"'”’*.?!,]+$", "", piece)
    return occurrences(text, bare, any_case=True)


# --- The finder `spacy`: entities and noun chunks ---


PIPELINE = "en_core_web_sm"


def spacy_spans(
    questions: Sequence[Question], *, nlp: Language | None = None
) -> list[tuple[Span, ...]]:
    """Find each question's entities and noun chunks with spaCy, without leading stop words."""
    pipeline = nlp or load_pipeline()
    docs = pipeline.pipe(question.text for question in questions)
    return [merged(_entities_and_chunks(doc)) for doc in docs]


def load_pipeline() -> Language:
    """Load the spaCy pipeline; a UserError names the command that installs it."""
    try:
        import spacy
    except ImportError:
        raise UserError(
            "The finder 'spacy' needs spaCy: pip install 'anchorscope[spans]', "
            f"then python -m spacy download {PIPELINE}."
        ) from None
    try:
        return spacy.load(PIPELINE)
    except OSError:
        raise UserError(
            f"The spaCy pipeline '{PIPELINE}' is not installed: "
            f"python -m spacy download {PIPELINE}."
        ) from None


def _entities_and_chunks(doc: Any) -> Iterator[Span]:
    # Noun chunks need a parse; a pipeline without one still has its entities.
    chunks = list(doc.noun_chunks) if doc.has_annotation("DEP") else []
    for piece in [*doc.ents, *chunks]:
        tokens = list(piece)
        if piece in chunks:
            while tokens and tokens[0].lower_ in STOP:
                tokens = tokens[1:]
        if tokens:
            stop = tokens[-1].idx + len(tokens[-1])
            yield trimmed(doc.text, Span(tokens[0].idx, stop))


# --- The entity of a question ---


_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")


def entity_of(question: Question, spans: QuestionSpans) -> str:
    """Name the entity of a question, the unit of folds and bootstraps.

    The dataset's own where it names one. Else the subject's longest span without case, white space
    and a leading article: it depends on this question alone, so questions added later move no fold.
    The finder "all" marks whole questions, not entities: then the spans of "auto" are taken.
    """
    if question.entity and question.entity != normalised(question.text):
        return question.entity
    marked = find_spans([question], finder="auto")[0] if spans.finder == "all" else spans
    if not marked.subject_spans:
        return normalised(question.text)
    start, stop = longest(marked.subject_spans)
    name = _ARTICLE.sub("", normalised(question.text[start:stop]), count=1)
    return name or normalised(question.text)
