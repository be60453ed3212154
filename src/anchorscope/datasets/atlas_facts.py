"""Read the package's tables of facts, which scripts/make_atlas.py makes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple


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


class Element(NamedTuple):
    number: int
    symbol: str
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]


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
