"""Read the package's tables of facts, which scripts/make_atlas.py makes."""

from __future__ import annotations

import csv
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
        """The name as a sentence has it."""
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
    return [Country(*map(_cell, row.keys(), row.values())) for row in _rows("countries.csv")]


def cities() -> list[City]:
    """Cities whose name means them and no other, from small towns to the largest."""
    return [City(*map(_cell, row.keys(), row.values())) for row in _rows("cities.csv")]


def elements() -> list[Element]:
    """The chemical elements by atomic number."""
    return [Element(*map(_cell, row.keys(), row.values())) for row in _rows("elements.csv")]


def _cell(column: str, text: str) -> Any:
    """Parse a cell: a number, names separated by |, or text."""
    if column in ("population", "area", "number"):
        return int(text)
    if column in ("latitude", "longitude"):
        return float(text)
    if column in ("names", "capitals", "continents", "currencies", "also"):
        return tuple(name for name in text.split("|") if name)
    return text


def _rows(name: str) -> list[dict[str, str]]:
    place = files("anchorscope.datasets") / "facts" / name
    return list(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))
