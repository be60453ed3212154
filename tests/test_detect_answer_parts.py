"""What answers claim, written as people and models write them."""

from __future__ import annotations

import pytest

from anchorscope.detect.answer_parts import answer_parts, form_of

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
    ("text", "form"),
    [
        ("Paris", "as-written"), ("Paris.", "full-stop"), ("paris", "lower-case"),
        ("**Paris**", "bold"), ("It is Paris.", "sentence"), ('{"answer": "Paris"}', "json"),
        ("UK", "as-written"), ("1961.", "full-stop"),
    ],
)  # fmt: skip
def test_the_form_of_an_answer_is_told_by_its_text(text, form):
    ((sentence, (entity,)),) = answer_parts(text, question=ASKED, every=False)
    assert form_of(text, entity, sentence) == form
