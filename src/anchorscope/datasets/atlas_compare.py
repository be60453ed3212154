"""The built-in set `atlas-compare`: questions that compare two things and hold the answer.

Folds are disjoint by entity, and a comparison has two things in it. So things are put into blocks
by a hash of their key, only things of one block are compared, and the block is the entity: no name
is in two blocks. Each pair has one question. A hash decides which of the two comes first. The
popularity is the smaller of the two populations; elements have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from anchorscope.datasets import atlas as table
from anchorscope.datasets.atlas import City, Country, Element
from anchorscope.datasets.source import Source
from anchorscope.datasets.text import digest
from anchorscope.records import Question, Shot

SHOTS = (
    Shot(question="Which city has more people, Tokyo or Oslo?", answer="Tokyo"),
    Shot(question="Which country has the larger area, Belgium or Canada?", answer="Canada"),
    Shot(question="Which city is further north, Helsinki or Rome?", answer="Helsinki"),
    Shot(question="Which element has the higher atomic number, helium or gold?", answer="gold"),
)
# About things that no question of the set is about.
RETEST_SHOTS = (
    Shot(question="Which planet has more moons, Mars or Jupiter?", answer="Jupiter"),
    Shot(question="Which mountain is higher, Mont Blanc or Ben Nevis?", answer="Mont Blanc"),
    Shot(question="Which ocean has the larger area, the Arctic or the Pacific?", answer="Pacific"),
    Shot(question="Which river is longer, the Nile or the Thames?", answer="Nile"),
)
SHOWN = {"Tokyo", "Oslo", "Belgium", "Canada", "Helsinki", "Rome", "helium", "gold"}
KNOWN = 1_000_000  # cities from this population on


Thing = City | Country | Element


class Relation(NamedTuple):
    text: str
    measure: str  # the field of a thing that is compared
    clear: Callable[[float, float], bool]  # whether lower and higher differ beyond doubt


def _times(factor: float) -> Callable[[float, float], bool]:
    return lambda low, high: high >= factor * low


def _more(least: float, most: float = float("inf")) -> Callable[[float, float], bool]:
    return lambda low, high: least <= high - low <= most


# City limits are drawn in many ways, so populations of cities must differ threefold. Further
# east is only asked where the way round the globe is plain.
CITIES = {
    "city-population": Relation("Which city has more people, {} or {}?", "population", _times(3)),
    "north": Relation("Which city is further north, {} or {}?", "latitude", _more(5)),
    "east": Relation("Which city is further east, {} or {}?", "longitude", _more(15, 120)),
}
COUNTRIES = {
    "country-population": Relation(
        "Which country has more people, {} or {}?", "population", _times(2)
    ),
    "area": Relation("Which country has the larger area, {} or {}?", "area", _times(2)),
}
ELEMENTS = {
    "higher-number": Relation(
        "Which element has the higher atomic number, {} or {}?", "number", _more(5)
    ),
}


def make() -> list[Question]:
    """Make all questions of the set, kind by kind."""
    known = [city for city in table.cities() if city.population >= KNOWN]
    return [
        *_compared("cities", 104, known, CITIES),
        *_compared("countries", 36, table.countries(), COUNTRIES),
        *_compared("elements", 22, table.elements(), ELEMENTS),
    ]


def _compared(
    kind: str, blocks: int, things: Sequence[Thing], relations: dict[str, Relation]
) -> Iterator[Question]:
    """Make the questions about all pairs within each block."""
    members: dict[int, list[Thing]] = {}
    for thing in things:
        if thing.name not in SHOWN:
            members.setdefault(int(digest(kind, thing.key), 16) % blocks, []).append(thing)
    for number in sorted(members):
        block = sorted(members[number], key=lambda thing: thing.key)
        for pair in combinations(block, 2):
            question = _question(f"{kind}-{number:02d}", pair, relations)
            if question is not None:
                yield question


def _question(
    entity: str, pair: tuple[Thing, Thing], relations: dict[str, Relation]
) -> Question | None:
    """Make a question about a pair by the first relation (in hash order) that clearly differs."""
    keys = [thing.key for thing in pair]
    if any(a.name in b.phrase for a, b in (pair, pair[::-1])):
        return None  # "Guinea or Papua New Guinea": the one name cannot be told from the other
    first, second = sorted(pair, key=lambda thing: digest("order", *keys, thing.key))
    for name in sorted(relations, key=lambda name: digest(name, *keys)):
        measure = relations[name].measure
        low, high = sorted(pair, key=lambda thing: getattr(thing, measure))
        if relations[name].clear(getattr(low, measure), getattr(high, measure)):
            break
    else:
        return None
    people = [float(thing.population) for thing in pair if not isinstance(thing, Element)]
    return Question(
        id=f"atlas-compare:test:{name}/{'-'.join(keys)}",
        dataset="atlas-compare",
        text=relations[name].text.format(first.phrase, second.phrase),
        answers=(high.name,),
        subjects=(first.name, second.name),
        relation=name,
        popularity=min(people, default=None),
        entity=entity,
    )


ATLAS_COMPARE = Source(
    name="atlas-compare", title="Atlas-Compare", shots=SHOTS, retest_shots=RETEST_SHOTS, make=make
)
