"""The two built-in sets hold what they promise, question by question."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from anchorscope.datasets import atlas as table
from anchorscope.datasets import load_questions
from anchorscope.datasets.atlas import SHOWN
from anchorscope.datasets.atlas_compare import SHOWN as COMPARED
from anchorscope.records import Question

ATLAS = load_questions("atlas")
COMPARE = load_questions("atlas-compare")
BOTH = pytest.mark.parametrize("name", ["atlas", "atlas-compare"])
SETS = {"atlas": ATLAS, "atlas-compare": COMPARE}


def question_with(text: str) -> Question:
    return next(question for question in (*ATLAS, *COMPARE) if question.text == text)


def test_sizes_and_relations() -> None:
    relations = Counter(question.relation for question in ATLAS)
    assert 2700 <= len(ATLAS) <= 3300
    assert len(relations) == 8
    assert relations["country"] > len(ATLAS) / 2
    assert 1350 <= len(COMPARE) <= 1650
    assert len({question.relation for question in COMPARE}) == 6


@BOTH
def test_ids_subjects_and_answers_are_whole_and_nothing_was_dropped(name: str) -> None:
    ids = [question.id for question in SETS[name]]
    assert len(set(ids)) == len(ids) and SETS[name].dropped == {}
    assert all(one.startswith(f"{name}:test:") for one in ids)
    for question in SETS[name]:
        counts = [question.text.count(subject) for subject in question.subjects]
        assert counts and set(counts) == {1}, question.text
        assert all(answer.strip() for answer in question.answers)
        assert 0 < len(question.answers) == len(set(question.answers))
        assert question.entity


def test_known_facts() -> None:
    assert question_with("What is the capital of France?").answers == ("Paris",)
    assert question_with("Paris is the capital of which country?").answers[0] == "France"
    assert question_with("What is the currency of Poland?").answers == (
        "Polish Zloty",
        "Zloty",
        "PLN",
    )
    assert question_with("What continent is Kenya in?").answers == ("Africa",)
    assert question_with("What is the chemical symbol of tungsten?").answers == ("W",)
    assert question_with("W is the chemical symbol of which element?").answers == ("tungsten",)
    assert question_with("What is the atomic number of gold?").answers == ("79",)
    assert question_with("What country is Chicago in?").answers[0] == "United States"
    assert {"USA", "United States", "America"} <= set(
        question_with("What country is Chicago in?").answers
    )
    sheffield = question_with("What country is Sheffield in?")
    assert {"United Kingdom", "UK", "England"} <= set(sheffield.answers)
    assert sheffield.id == "atlas:test:country/2638077"  # GeoNames' number of Sheffield
    assert "England" in question_with("London is the capital of which country?").answers
    edinburgh = question_with("What country is Edinburgh in?").answers
    assert "Scotland" in edinburgh and "England" not in edinburgh


def test_no_atlas_question_holds_its_answer() -> None:
    for question in ATLAS:
        text = question.text.lower().replace("?", " ").split()
        for answer in question.answers:
            assert answer.lower() not in " ".join(text).split(), question.text
    texts = {question.text for question in ATLAS}
    assert "Mexico City is the capital of which country?" not in texts
    assert "What is the capital of Singapore?" not in texts


@BOTH
def test_the_shots_show_nothing_that_is_asked(name: str) -> None:
    shots = SETS[name].shots
    assert len(shots) == 4
    assert not {shot.question for shot in shots} & {question.text for question in SETS[name]}
    if name == "atlas":
        assert not SHOWN & {question.entity for question in ATLAS}
        assert all(any(word in shot.question.lower() for word in SHOWN) for shot in shots)
    else:
        assert not COMPARED & {subject for q in COMPARE for subject in q.subjects}
        assert all(sum(word in shot.question for word in COMPARED) == 2 for shot in shots)


def test_the_answer_of_a_comparison_is_one_of_its_two_names() -> None:
    for question in COMPARE:
        assert len(question.subjects) == 2
        assert len(question.answers) == 1
        assert question.answers[0] in question.subjects
        assert question.text.index(question.subjects[0]) < question.text.index(question.subjects[1])


def test_the_place_in_the_question_says_nothing() -> None:
    first = [question.answers[0] == question.subjects[0] for question in COMPARE]
    assert 0.45 <= sum(first) / len(first) <= 0.55
    shots = [shot.question.index(shot.answer) for shot in COMPARE.shots]
    others = [shot.question.rindex(" or ") for shot in COMPARE.shots]
    assert sum(place < other for place, other in zip(shots, others, strict=True)) == 2


def test_no_name_is_under_two_entities() -> None:
    entities = defaultdict(set)
    for question in COMPARE:
        for subject in question.subjects:
            entities[subject].add(question.entity)
    assert all(len(found) == 1 for found in entities.values())
    sizes = Counter(question.entity for question in COMPARE)
    assert len(sizes) >= 50
    assert max(sizes.values()) < len(COMPARE) / 20  # no block can unbalance a fold


def test_comparisons_are_true_by_the_table() -> None:
    by_name: dict[str, dict[str, float]] = {}
    for city in table.cities():
        measures = {"city-population": city.population, "north": city.latitude}
        by_name[city.name] = {**measures, "east": city.longitude}
    for country in table.countries():
        people = {"country-population": country.population, "area": country.area}
        by_name[country.name] = {**by_name.get(country.name, {}), **people}
    for element in table.elements():
        by_name[element.name] = {"higher-number": element.number}
    for question in COMPARE:
        loser = next(name for name in question.subjects if name != question.answers[0])
        relation = str(question.relation)
        high, low = by_name[question.answers[0]][relation], by_name[loser][relation]
        least = low * 2 if relation in ("area", "country-population") else low + 5
        assert high >= (low * 3 if relation == "city-population" else least), question.text


def test_a_larger_table_keeps_the_old_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table.cities()
    monkeypatch.setattr(table, "cities", lambda: whole[::2])
    fewer = load_questions("atlas-compare")
    assert 0 < len(fewer) < len(COMPARE)
    assert set(fewer.questions) <= set(COMPARE.questions)


def test_the_table_has_each_name_once() -> None:
    cities = [city.name for city in table.cities()]
    countries = [country.name for country in table.countries()]
    assert len(set(cities)) == len(cities)
    assert len(set(countries)) == len(countries) == 193
    assert not set(cities) & set(countries)
    assert [element.number for element in table.elements()] == list(range(1, 119))
