"""A file of questions: which dataset it is, and its rows as drafts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from anchorscope.datasets.reading import read_rows, stem
from anchorscope.datasets.rows import check_columns, draft, original_id, split_of
from anchorscope.datasets.source import Draft, Row, Source
from anchorscope.errors import UserError

# Words of a file's name that say which part of a dataset it is, not which dataset.
PARTS = re.compile(
    "dev|train|test|validation|valid|val|open|qa|unfiltered|distractor|fullwiki|simplified|v?[0-9]+"
)
SPLIT_WORDS = ("train", "dev", "validation", "test")


def from_file(path: Path, known: Iterable[Source]) -> tuple[Source, list[Draft]]:
    """The file's dataset, one of `known` or the file's own, and its questions as drafts."""
    rows = read_rows(path)
    source = recognise(path, rows, known)
    normal = [source.normal(row) for row in rows]
    check_columns(normal, path.name)
    return source, drafts(normal, source.name, _split(path), path.name)


def drafts(rows: Sequence[Row], dataset: str, split: str, where: str) -> list[Draft]:
    """One draft a row; rows are counted from 1 in errors, the header not counted."""
    check_ids(rows, split, where)
    made = [
        draft(row, dataset=dataset, split=split, where=f"Row {number} of {where}")
        for number, row in enumerate(rows, 1)
    ]
    given = [row for row in rows if row.get("subject") or row.get("subjects")]
    if given and not any(one.question.subjects for one in made):
        raise UserError(
            f"None of the {len(given)} subjects of {where} stands in its question. A subject is "
            "the part of the question that names what is asked about, as written there."
        )
    return made


def check_ids(rows: Sequence[Row], split: str, where: str) -> None:
    """Raises where two rows of one split give the same id."""
    seen: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows, 1):
        here = f"Row {number} of {where}"
        key = (split_of(row, split, here), original_id(row, here))
        if key[1] and seen.setdefault(key, number) != number:
            raise UserError(
                f"Rows {seen[key]} and {number} of {where} have the same id '{key[1]}'. "
                "Give each row its own, or leave the column out."
            )


def recognise(path: Path, rows: Sequence[Row], known: Iterable[Source]) -> Source:
    """The dataset that the columns or the file's name say, else one named after the file."""
    known = tuple(known)
    columns = set(rows[0])
    for source in known:
        if any(mark <= columns for mark in source.marks):
            return source
    name = _bare_name(path)
    for source in known:
        if name in source.stems:
            return source
    own = stem(path).replace(":", "-")  # a colon would break the id in the wrong place
    return Source(name=own, title=own)


def _words(path: Path) -> list[str]:
    return re.findall(r"[a-z0-9]+", stem(path).lower())


def _bare_name(path: Path) -> str:
    """The file's name without the words for its part: "NQ-open.dev" is "nq"."""
    return "".join(word for word in _words(path) if not PARTS.fullmatch(word))


def _split(path: Path) -> str:
    """The split that the file's name says, for rows that say none."""
    return next((word for word in SPLIT_WORDS if word in _words(path)), "all").replace(
        "validation", "dev"
    )
