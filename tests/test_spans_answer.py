"""Where the answer entity stands in an answer."""

from __future__ import annotations

import inspect

import pytest

from anchorscope.spans.answer import answer_span

CAPITAL = "What is the capital of France?"
BORN = "Who was born first, Kiefer Sutherland or Christian Slater?"

CASES = [
    # bare answers
    ("Paris", "", "Paris"),
    ("  Paris. ", "", "Paris"),
    ("The Beatles.", "", "Beatles"),
    ('"Hamlet"', "", "Hamlet"),
    ("Paris, France", "", "Paris"),
    ("The Eiffel Tower (Paris)", "", "Eiffel Tower"),
    ("December 14, 1972", "", "December 14, 1972"),
    ("1,000", "", "1,000"),
    ("in 1972", "", "1972"),
    ("In the Netherlands", "", "Netherlands"),
    ("F. Scott Fitzgerald", "", "F. Scott Fitzgerald"),
    ("No Country for Old Men", "", "No Country for Old Men"),
    ("The World Is Not Enough", "", "World Is Not Enough"),
    ("A", "", "A"),
    ("東京。", "", "東京"),
    ("🇫🇷", "", "🇫🇷"),
    ("St. Louis. It is a city in Missouri.", "", "St. Louis"),
    # yes and no
    ("Yes, they are both American", "", "Yes"),
    ("No.", "", "No"),
    ("yes they are", "Are they both American?", "yes"),
    # abstentions
    ("I don't know.", CAPITAL, "I don't know"),
    ("It is not known where he was born.", "", "It is not known where he was born"),
    # sentences
    ("Kanpur is a city in India.", "", "India"),
    ("Kanpur is a city in India.", "In what country is Kanpur?", "India"),
    ("Kanpur is located in India.", "In what country is Kanpur?", "India"),
    ("It's a city in Peru", "Where is Cusco?", "Peru"),
    ("The capital of France is Paris.", "", "Paris"),
    ("The capital of France is Paris.", CAPITAL, "Paris"),
    ("Paris is the capital of France.", CAPITAL, "Paris"),
    ("It was written by William Shakespeare in 1599", "", "William Shakespeare"),
    ("William Shakespeare wrote Hamlet.", "Who wrote Hamlet?", "William Shakespeare"),
    ("Kiefer Sutherland was born first.", BORN, "Kiefer Sutherland"),
    ("He is an American actor.", "What is Tom Hanks's occupation?", "American actor"),
    ("He was an actor from Ohio.", "What is Tom Hanks's occupation?", "actor from Ohio"),
    ("The currency of Japan is the yen.", "What is the currency of Japan?", "yen"),
    ("The composer is a legend named Al Bianchi.", "Who was the composer of Ran?", "Al Bianchi"),
    ("The month is called Ramadan, a holy month.", "what is the month of fasting", "Ramadan"),
    ("It is located in the state of New Zealand.", "In what country is it?", "New Zealand"),
    ("He was born in the city of Manchester, in 1849.", "In what city was he born?", "Manchester"),
    ("He is a chef who cooks.", "What is his occupation?", "chef"),
    ("It was built by Enrico Fermi during the war", "", "Enrico Fermi"),
    ("It is approximately 640 acres.", "How large is it?", "640 acres"),
    ("The Man Who Would Be King", "", "Man Who Would Be King"),
    # the question repeated first
    ("What is the capital of France? Paris", CAPITAL, "Paris"),
    ("Oxford University Press", "Which Oxford house is a Press?", "Oxford University Press"),
    ("Christian Slater", BORN, "Christian Slater"),
]


@pytest.mark.parametrize(("answer", "question", "entity"), CASES)
def test_the_span_is_the_entity(answer: str, question: str, entity: str):
    span = answer_span(answer, question=question)
    assert span is not None
    assert answer[span.start : span.stop] == entity


@pytest.mark.parametrize("answer", ["", "   ", "...", "?!", '""'])
def test_punctuation_alone_has_no_entity(answer: str):
    assert answer_span(answer) is None


def test_it_cannot_look_at_gold_answer_or_verdict():
    assert list(inspect.signature(answer_span).parameters) == ["answer_text", "question"]
