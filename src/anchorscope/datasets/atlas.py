"""The built-in set `atlas`: questions about facts of cities, countries and chemical elements.

The popularity is the population of the city or country asked about; elements have none. The
entity is the row of the table that holds the fact, so that all questions about one country (its
capital, its currency, the country of that capital) are in one fold. A question that holds its
answer ("Mexico City is the capital of which country?") is left out.

The facts are tables of the package, which scripts/make_atlas.py makes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

from anchorscope.datasets.source import Source
from anchorscope.datasets.text import normalised, words
from anchorscope.records import Question, Shot

SHOTS = (
    Shot(question="What country is Toronto in?", answer="Canada"),
    Shot(question="What is the capital of Portugal?", answer="Lisbon"),
    Shot(question="What is the currency of Japan?", answer="Japanese yen"),
    Shot(question="What is the chemical symbol of oxygen?", answer="O"),
)
# About things that no question of the set is about.
RETEST_SHOTS = (
    Shot(question="What is the chemical formula of water?", answer="H2O"),
    Shot(question="What is the currency of Puerto Rico?", answer="United States dollar"),
    Shot(question="What is the capital of Greenland?", answer="Nuuk"),
    Shot(question="What country is Salzburg in?", answer="Austria"),
)
SHOWN = {"toronto", "portugal", "japan", "oxygen"}  # the worked examples' entities


class Country(NamedTuple):
    code: str  # ISO 3166, two letters
    article: str  # "the" in "the Netherlands", else empty
    names: tuple[str, ...]  # the first is the usual one
    capitals: tuple[str, ...]  # none where it is disputed
    continents: tuple[str, ...]
    currencies: tuple[str, ...]
    population: int
    area: int  # square kilometres

    @property
    def key(self) -> str:
        return self.code

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def phrase(self) -> str:
        """The name as used in a sentence, with its article."""
        return f"{self.article} {self.name}".strip()


class City(NamedTuple):
    key: str  # GeoNames' number
    name: str
    country: str
    also: tuple[str, ...]  # further right answers to "which country", as England for Leeds
    population: int
    latitude: float
    longitude: float

    @property
    def phrase(self) -> str:
        return self.name


class Element(NamedTuple):
    number: int
    symbol: str
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        return str(self.number)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def phrase(self) -> str:
        return self.name


def countries() -> list[Country]:
    """The members of the United Nations, by code."""
    return [Country(**row) for row in _rows("countries.csv")]


def cities() -> list[City]:
    """Cities with an unambiguous name, from small towns to the largest."""
    return [City(**row) for row in _rows("cities.csv")]


def elements() -> list[Element]:
    """The chemical elements by atomic number."""
    return [Element(**row) for row in _rows("elements.csv")]


_NUMBERS = {"population": int, "area": int, "number": int, "latitude": float, "longitude": float}
_LISTS = ("names", "capitals", "continents", "currencies", "also")


def _rows(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a table; names in a list are separated by |."""
    text = (files("anchorscope.datasets") / "facts" / name).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        yield {
            column: tuple(filter(None, cell.split("|")))
            if column in _LISTS
            else _NUMBERS.get(column, str)(cell)
            for column, cell in row.items()
        }


def make() -> list[Question]:
    """Make all questions of the set, in the order of the"""
    every = [*_cities(), *_countries(), *_elements()]
    return [
        question
        for question in every
        if question.entity not in SHOWN
        and not any(words(answer) in words(question.text) for answer in question.answers)
    ]


def _cities() -> Iterator[Question]:
    by_code = {country.code: country for country in countries()}
    for city in cities():
        country = by_code[city.country]
        if city.name in country.capitals[:1]:
            continue  # "capital-of" asks for the same fact
        yield _question(
            f"country/{city.key}",
            f"What country is {city.name} in?",
            (*country.names, *city.also),
            city.name,
            population=city.population,
        )


def _countries() -> Iterator[Question]:
    also = {(city.country, city.name): city.also for city in cities()}
    for country in countries():
        about = {"entity": country.name, "population": country.population}
        for relation, text, answers in (
            ("capital", "What is the capital of {}?", country.capitals),
            ("currency", "What is the currency of {}?", country.currencies),
            ("continent", "What continent is {} in?", country.continents),
        ):
            if answers:
                key = f"{relation}/{country.code}"
                yield _question(key, text.format(country.phrase), answers, country.name, **about)
        for capital in country.capitals[:1]:
            text = f"{capital} is the capital of which country?"
            names = (*country.names, *also.get((country.code, capital), ()))
            yield _question(f"capital-of/{country.code}", text, names, capital, **about)


def _elements() -> Iterator[Question]:
    for element in elements():
        name, symbol, number = element.name, element.symbol, element.number
        for relation, text, answers, subject in (
            ("symbol", f"What is the chemical symbol of {name}?", (symbol,), name),
            # The symbol comes first: further on, "W" would be found in "What" or "Which".
            (
                "element",
                f"{symbol} is the chemical symbol of which element?",
                element.names,
                symbol,
            ),
            ("atomic-number", f"What is the atomic number of {name}?", (element.key,), name),
        ):
            yield _question(f"{relation}/{number}", text, answers, subject, entity=name)


def _question(
    key: str,
    text: str,
    answers: tuple[str, ...],
    subject: str,
    *,
    entity: str = "",
    population: int | None = None,
) -> Question:
    return Question(
        id=f"atlas:test:{key}",
        dataset="atlas",
        text=text,
        answers=answers,
        subjects=(subject,),
        relation=key.split("/")[0],
        popularity=None if population is None else float(population),
        entity=normalised(entity or subject),
    )


ATLAS = Source(name="atlas", title="Atlas", shots=SHOTS, retest_shots=RETEST_SHOTS, make=make)
