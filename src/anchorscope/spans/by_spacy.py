"""Exact question tokens from a spaCy pipeline: entities and noun chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from anchorscope.errors import UserError
from anchorscope.records import Question, Span
from anchorscope.spans.characters import STOP, merged, trimmed

if TYPE_CHECKING:
    from spacy.language import Language

PIPELINE = "en_core_web_sm"


def spacy_spans(
    questions: Sequence[Question], *, nlp: Language | None = None
) -> list[tuple[Span, ...]]:
    """The entities and noun chunks of each question, without the small words they start with."""
    pipeline = nlp or load_pipeline()
    docs = pipeline.pipe(question.text for question in questions)
    return [merged(_marked(doc)) for doc in docs]


def load_pipeline(name: str = PIPELINE) -> Language:
    """The spaCy pipeline of that name, or the line that installs what is missing."""
    try:
        import spacy
    except ImportError:
        raise UserError(
            "The finder 'spacy' needs spaCy: pip install 'anchorscope[spans]', "
            f"then python -m spacy download {name}."
        ) from None
    try:
        return spacy.load(name)
    except OSError:
        raise UserError(
            f"The spaCy pipeline '{name}' is not installed: python -m spacy download {name}."
        ) from None


def _marked(doc: Any) -> Iterator[Span]:
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
