"""Describe a dataset: its columns, its worked examples, and the place of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anchorscope.records import Question, Shot

PERSON = Shot(question="Who painted the Mona Lisa?", answer="Leonardo da Vinci")
PLACE = Shot(question="In which city is the Colosseum?", answer="Rome")
DATE = Shot(question="In what year did the Berlin Wall fall?", answer="1989")
THING = Shot(question="What is the largest planet in the solar system?", answer="Jupiter")
YES_NO = Shot(question="Are the Alps and the Andes on the same continent?", answer="no")
GENERAL = (PERSON, PLACE, DATE, THING)
WITH_YES_NO = (PERSON, PLACE, DATE, YES_NO)
# Others of the same kinds, in another order, for the retest.
PERSON_AGAIN = Shot(question="Who composed The Four Seasons?", answer="Antonio Vivaldi")
PLACE_AGAIN = Shot(question="In which country is Mount Kilimanjaro?", answer="Tanzania")
DATE_AGAIN = Shot(question="In what year did the Titanic sink?", answer="1912")
THING_AGAIN = Shot(question="What is the hardest natural mineral?", answer="Diamond")
YES_NO_AGAIN = Shot(question="Are violins and flutes both string instruments?", answer="no")
GENERAL_AGAIN = (THING_AGAIN, DATE_AGAIN, PLACE_AGAIN, PERSON_AGAIN)
WITH_YES_NO_AGAIN = (YES_NO_AGAIN, DATE_AGAIN, PLACE_AGAIN, PERSON_AGAIN)
Row = Mapping[str, object]  # column -> value, as a file or the hub gives it


class Draft(NamedTuple):
    """A question before duplicates are removed, and whether its dataset calls it ambiguous."""

    question: Question
    ambiguous: bool = False


@dataclass(frozen=True, kw_only=True)
class HubPlace:
    """The place of a dataset on the hub, and the columns to read."""

    path: str
    split: str
    columns: tuple[str, ...] = ()
    config: str | None = None


def same(row: Row) -> Row:
    """Return the row unchanged: its columns are ours already."""
    return row


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset: `make` builds its questions, or its rows come from `hub` or a file.

    `normal` turns a row in the hub's or the authors' shape into one with our columns and
    leaves a row that has them as it is. A file belongs to the dataset if it has all the
    columns of one of `marks`, or if its name is one of `stems`.
    """

    name: str
    title: str
    shots: tuple[Shot, ...] = GENERAL
    retest_shots: tuple[Shot, ...] = GENERAL_AGAIN
    make: Callable[[], list[Question]] | None = None
    hub: HubPlace | None = None
    normal: Callable[[Row], Row] = same
    marks: tuple[frozenset[str], ...] = ()
    stems: tuple[str, ...] = ()
    formats: str = ""  # the authors' files that are accepted, in words
