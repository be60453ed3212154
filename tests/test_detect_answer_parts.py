"""What answers claim, written as people and models write them."""

from __future__ import annotations

import pytest

from anchorscope.detect.answer_parts import answer_parts, single_entity

ASKED = "What is the capital of France?"
FENCE = 'Here it is:\n```json\n{"city": "Paris", "since": 987}\n```'


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("Paris", ["Paris"]),
        ("**Paris**", ["Paris"]),
        ("Sure! The capital of France is Paris.", ["Paris"]),
        ('{"answer": "Paris"}', ["Paris"]),
        (FENCE, ["Paris", "987"]),
        ("```python\nprint('Paris')\n```", []),
        ("Of course:\n- Berlin\n- Bonn", ["Berlin", "Bonn"]),
        ("Its capital is Lyon. Its currency is the yen. It was founded by Ada Ng in 1961.",
         ["Lyon", "yen", "Ada Ng", "1961"]),
        ("What do you mean?", []),
        ("I don't know.", []),
        (" ?! ", []),
    ],
)  # fmt: skip
def test_entities_are_found_in_prose_lists_json_and_behind_openings(text, entities):
    parts = answer_parts(text, question=ASKED)
    assert [text[a:b] for sentence in parts for a, b in sentence.entities] == entities
    inside = [s.span.start <= a and b <= s.span.stop for s in parts for a, b in s.entities]
    assert all(inside)
    first = answer_parts(text, question=ASKED, every=False)
    assert [text[a:b] for sentence in first for a, b in sentence.entities] == entities[:1]


@pytest.mark.parametrize(
    ("text", "spellings"),
    [
        ("Paris.", ("Paris",)),
        ('{"answer": "Paris"}', ("Paris",)),
        ("paris", ("paris", "Paris")),
        ("It is new york.", ("new york", "New York")),
        ("1961.", ("1961",)),
        ("UK", ("UK",)),
    ],
)
def test_a_single_entity_has_a_spelling_with_capitals_if_it_has_none(text, spellings):
    single = single_entity(text, question=ASKED, every=True)
    assert single is not None and single.spellings == spellings
    assert text[single.span.start : single.span.stop] == spellings[0]
    assert single.sentence.start <= single.span.start < single.span.stop <= single.sentence.stop


def test_an_answer_with_several_entities_has_no_single_one():
    assert single_entity("Paris. It is Rome.", question=ASKED, every=True) is None
    assert single_entity("Paris. It is Rome.", question=ASKED, every=False) is None
    assert single_entity("I don't know.", question=ASKED, every=True) is None


@pytest.mark.parametrize(
    "text",
    [
        "It was not written by Bacon.",
        "I don't think it is Paris.",
        "-3.5",
        "I am not sure. Paris.",
        "Paris is not the author.",
        "Not the author:\n- Paris",
        "Bacon. This is false.",
        "I doubt it is Paris.",
        "Paris (wrong)",
        "Anything but Paris.",
        "Bacon, a forger, wrote it.",
        '{"not": "Bacon"}',
    ],
)
def test_an_entity_that_the_answer_does_not_claim_is_not_read_alone(text):
    assert answer_parts(text, question="Who wrote Hamlet?")
    assert single_entity(text, question="Who wrote Hamlet?", every=True) is None
