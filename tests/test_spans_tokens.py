"""Characters to tokens, with a real byte-level tokenizer trained on the spot."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import ByteLevel as Offsets
from tokenizers.processors import Sequence as Both
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from anchorscope.records import Question, Span
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import tokens_of
from anchorscope.spans.question import find_spans, given_spans

CORPUS = [
    "In what country is Kanpur? Kanpur is a city in India.",
    "What is the capital of France? The capital of France is Paris.",
    "Who was born first, Kiefer Sutherland or Christian Slater?",
    "Où est né Gabriel García Márquez? 東京はどこですか?",
]


@pytest.fixture(scope="module", params=[True, False], ids=["bare", "with-space"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A byte-level BPE whose ranges leave out (bare) or count (with-space) the leading space."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = Decoder()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    start = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.post_processor = Both([Offsets(trim_offsets=request.param), start])
    return made


def text_of(tokenizer: Tokenizer, text: str, spans: tuple[Span, ...]) -> str:
    """The decoded tokens of the spans, the independent way back from tokens to text."""
    encoded = tokenizer.encode(text)
    return tokenizer.decode([encoded.ids[i] for i in tokens_of(spans, encoded.offsets)])


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("In what country is Kanpur?", "Kanpur"),
        ("Kanpur is in what country?", "Kanpur"),
        ("Where is  Kanpur , in India?", "Kanpur"),
        ("Où est né Gabriel García Márquez?", "Gabriel García Márquez"),
        ("どこですか、 東京?", "東京"),
        ("What does 🙂 mean?", "🙂"),
        ("What is the flag 🇫🇷 of?", "🇫🇷"),
        ("Who sang 👩‍🚀?", "👩‍🚀"),
        ("Tell me about naïve Bayes.", "naïve Bayes"),
    ],
)
def test_the_tokens_of_a_subject_decode_to_it(tokenizer: Tokenizer, text: str, subject: str):
    start = text.index(subject)
    found = text_of(tokenizer, text, (Span(start, start + len(subject)),))
    assert found.strip() == subject


def test_a_token_that_straddles_the_border_is_taken(tokenizer: Tokenizer):
    encoded = tokenizer.encode("東京はどこですか?")  # one token holds bytes of 東, 京 and は
    assert (0, 3) in encoded.offsets
    assert tokens_of((Span(0, 2),), encoded.offsets) == (1, 2)


def test_a_subject_named_twice_gives_both_places(tokenizer: Tokenizer):
    text = "Is Kanpur larger than Paris, and is Kanpur older?"
    question = Question(id="x", dataset="d", text=text, answers=("yes",), subjects=("Kanpur",))
    assert text_of(tokenizer, text, given_spans(question)).split() == ["Kanpur", "Kanpur"]
    tokens = tokens_of(given_spans(question), tokenizer.encode(text).offsets)
    assert any(b - a > 1 for a, b in pairwise(tokens))


def test_a_subject_at_the_start_leaves_the_special_token_out(tokenizer: Tokenizer):
    tokens = tokens_of((Span(0, 6),), tokenizer.encode("Kanpur is where?").offsets)
    assert tokens[0] == 1


def test_the_whole_question_is_every_token_but_special_and_last_mark(tokenizer: Tokenizer):
    text = "In what country is Kanpur?"
    encoded = tokenizer.encode(text)
    question = Question(id="x", dataset="d", text=text, answers=("India",))
    [found] = find_spans([question], finder="all")
    assert tokens_of(found.spans, encoded.offsets) == tuple(range(1, len(encoded.ids) - 1))


def test_an_answer_that_repeats_the_question_ends_on_its_entity(tokenizer: Tokenizer):
    answer = "The capital of France is Paris."
    span = answer_span(answer, question="What is the capital of France?")
    assert span is not None
    assert text_of(tokenizer, answer, (span,)).strip() == "Paris"


def test_an_empty_answer_has_no_tokens(tokenizer: Tokenizer):
    assert answer_span("") is None
    assert tokens_of((), tokenizer.encode("").offsets) == ()


def test_white_space_beside_a_span_is_not_taken():
    offsets = [(0, 0), (0, 2), (2, 3), (3, 8), (8, 9), (9, 10)]  # "in", " ", "Paris", " ", "?"
    assert tokens_of((Span(3, 8),), offsets) == (3,)


def test_a_trimmed_space_is_taken_inside_a_span_only():
    offsets = [(0, 0), (0, 3), (4, 4), (4, 8), (9, 9), (9, 10)]  # "New", " ", "York", " ", "?"
    assert tokens_of((Span(0, 8),), offsets) == (1, 2, 3)
    assert tokens_of((Span(4, 8),), offsets) == (3,)


def test_a_space_inside_the_token_does_no_harm():
    assert tokens_of((Span(3, 8),), [(0, 2), (2, 8), (8, 9)]) == (1,)


def test_spans_with_a_gap_leave_the_gap_out():
    assert tokens_of((Span(0, 2), Span(5, 6)), [(0, 1), (1, 3), (3, 5), (5, 7)]) == (0, 1, 3)
