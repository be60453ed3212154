"""What the package knows of one dataset: its names, its shots, where its rows come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anchorscope.datasets.shots import GENERAL
from anchorscope.records import Question, Shot

Row = Mapping[str, object]  # column -> value, as a file or the hub gives it


class Draft(NamedTuple):
    """A question before duplicates are looked for, and whether its dataset calls it ambiguous."""

    question: Question
    ambiguous: bool = False


@dataclass(frozen=True, kw_only=True)
class HubPlace:
    """Where a dataset lies on the hub, and the columns that are read of it."""

    path: str
    split: str
    columns: tuple[str, ...]
    config: str | None = None


def same(row: Row) -> Row:
    """The row itself: its columns are ours already."""
    return row


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset. Either `make` builds its questions or its rows come from `hub` or a file.

    `normal` turns a row in the hub's or the authors' shape into one with our columns and
    leaves a row that has them as it is. A file belongs to the dataset if it has all the
    columns of one of `marks`, or if its name is one of `stems`.
    """

    name: str
    title: str
    shots: tuple[Shot, ...] = GENERAL
    make: Callable[[], list[Question]] | None = None
    hub: HubPlace | None = None
    normal: Callable[[Row], Row] = same
    marks: tuple[frozenset[str], ...] = ()
    stems: tuple[str, ...] = ()
    formats: str = ""  # the authors' files that are accepted, in words
