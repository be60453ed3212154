"""The small table of facts in the package; scripts/make_atlas.py says where it comes from."""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import NamedTuple


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
    lists = ("names", "capitals", "continents", "currencies")
    return [
        Country(
            code=row["code"],
            article=row["article"],
            **{column: _split(row[column]) for column in lists},
            population=int(row["population"]),
            area=int(row["area"]),
        )
        for row in _rows("countries.csv")
    ]


def cities() -> list[City]:
    """Cities whose name means them and no other, from small towns to the largest."""
    return [
        City(
            key=row["key"],
            name=row["name"],
            country=row["country"],
            also=_split(row["also"]),
            population=int(row["population"]),
            latitude=float(row["latitude"]),
            longitude=float(row["longitude"]),
        )
        for row in _rows("cities.csv")
    ]


def elements() -> list[Element]:
    """The chemical elements by atomic number."""
    return [
        Element(int(row["number"]), row["symbol"], _split(row["names"]))
        for row in _rows("elements.csv")
    ]


def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split("|") if name)


def _rows(name: str) -> list[dict[str, str]]:
    place = files("anchorscope.datasets") / "facts" / name
    return list(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))
