"""Files of questions: five formats, broken bytes, odd values; and what columns are called."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from anchorscope.answers.verdicts import read_verdicts
from anchorscope.datasets import load_questions
from anchorscope.datasets.columns import read_columns
from anchorscope.datasets.hub import read_address
from anchorscope.errors import UserError
from torture.fuzz.target import Target
from torture.fuzz.texts import part, seeded, text, value

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
COLUMNS = (
    "question",
    "answers",
    "answer",
    "id",
    "subject",
    "subjects",
    "relation",
    "popularity",
    "entity",
    "split",
    "ambiguous",
    "possible_answers",
    "subj",
    "prop",
    "s_pop",
    "Question",
    "QuestionId",
    "Answer",
    "question_id",
    "question_source",
    "type",
    "supporting_facts",
    "_id",
    "canonical",
    "problem",
)
STEMS = (
    "mine",
    "popQA",
    "triviaqa-dev",
    "hotpot_dev_distractor_v1",
    "NQ-open.dev",
    "sciq",
    "a:b",
    "..",
)
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz")
OURS = ("id", "subject", "popularity", "split", "entity", "ambiguous", "relation")


def _row(r: Random) -> dict[str, Any]:
    if r.random() < 0.2:
        return {_name(r): value(r) for _ in range(r.randint(0, 6))}
    row = {"question": _mostly(r, text(r)), "answers": _mostly(r, [part(r), text(r)])}
    for name in OURS:
        if r.random() < 0.15:
            row[name] = _mostly(r, r.choice((part(r), 1, "dev")))
    return row


def _mostly(r: Random, plain: Any) -> Any:
    return plain if r.random() < 0.9 else value(r)


def _name(r: Random) -> str:
    return r.choice(COLUMNS) if r.random() < 0.7 else part(r)


def _rows(r: Random) -> list[dict[str, Any]]:
    return [_row(r) for _ in range(r.choice((0, 1, 1, 2, 5)))]


def _damage(r: Random) -> list[tuple[int, int]]:
    """Where bytes are changed, and into what; mostly none."""
    if r.random() < 0.6:
        return []
    return [(r.randint(0, 10**6), r.randint(0, 255)) for _ in range(r.randint(1, 3))]


def _file(r: Random) -> tuple[list[dict[str, Any]], str, str, list[tuple[int, int]]]:
    return _rows(r), r.choice(STEMS), r.choice(ENDINGS), _damage(r)


def _verdicts(r: Random) -> tuple[list[dict[str, Any]], str]:
    said = ("right", "wrong", "1", "0", 1, 0, 1.0, True, "TRUE", "")
    rows = [
        {"id": _mostly(r, part(r)), "right": _mostly(r, r.choice(said)), "abstained": _mostly(r, 0)}
        for _ in range(r.randint(0, 4))
    ]
    return rows, r.choice(ENDINGS)


def _columns(r: Random) -> tuple[str, dict[str, Any]]:
    row = {_name(r): value(r) for _ in range(r.randint(1, 4))}
    theirs = [*row, _name(r), f"{next(iter(row))}.a"]
    pairs = [f"{r.choice(COLUMNS[:11])}={r.choice(theirs)}" for _ in range(r.randint(0, 4))]
    named = ["question=" + r.choice(theirs), "answers=" + r.choice(theirs), *pairs]
    return ",".join(named if r.random() < 0.7 else [part(r), *pairs]), row


def _place(r: Random) -> str:
    parts = [part(r) for _ in range(r.randint(1, 4))]
    return r.choice(("", "hub:", "hub:a/", "hub:a/b:")) + ":".join(parts)


plain_word = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="|[\ufeff"),
    min_size=1,
    max_size=20,
).filter(lambda text: len(text.split()) > 0)
plain_rows = st.lists(
    st.fixed_dictionaries(
        {
            "question": plain_word,
            "answers": st.lists(plain_word, min_size=1, max_size=3),
            "entity": plain_word,
            "popularity": st.floats(0.5, 1e9),
        },
    ),
    min_size=1,
    max_size=4,
)


def as_bytes(content: list[dict[str, Any]], ending: str) -> bytes:
    """The rows in a format, lists as JSON where it has none."""
    if ending == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    if ending == ".jsonl.gz":
        return gzip.compress(as_bytes(content, ".jsonl"), compresslevel=1)
    if ending == ".json":
        return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if ending == ".parquet":
        return _parquet(content)
    names = list(dict.fromkeys(name for row in content for name in row))
    table = io.StringIO(newline="")
    written = csv.DictWriter(table, names, delimiter="\t" if ending == ".tsv" else ",")
    written.writeheader()
    for row in content:
        cells = {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()}
        written.writerow(cells)
    return table.getvalue().encode("utf-8", "surrogatepass")


def _parquet(content: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    out = io.BytesIO()
    try:
        pyarrow.parquet.write_table(pa.Table.from_pylist(content), out)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return b"PAR1" + json.dumps(content).encode() + b"PAR1"  # no table: then it is damage
    return out.getvalue()


def _written(data: bytes, name: str) -> Path:
    file = FOLDER / name
    file.write_bytes(data)
    return file


def check_file(given: tuple[list[dict[str, Any]], str, str, list[tuple[int, int]]]) -> None:
    """Questions with ids of their own and answers, or a sentence; some bytes are changed first."""
    content, stem, ending, damage = given
    data = bytearray(as_bytes(content, ending))
    for at, byte in damage:
        if data:
            data[at % len(data)] = byte
    file = _written(bytes(data), stem + ending)
    try:
        found = load_questions(file)
        ids = [question.id for question in found]
        assert len(set(ids)) == len(ids) > 0
        for question in found:
            assert question.text == " ".join(question.text.split()) and question.answers
            assert all(subject in question.text for subject in question.subjects)
            question.text.encode()
        assert load_questions(file, seed=1, limit=len(ids)).questions
    finally:
        file.unlink()


def check_formats(content: list[dict[str, Any]]) -> None:
    """The same rows are the same questions in every format, whatever their order."""
    found = {}
    for ending in ENDINGS:
        order = content if len(ending) % 2 else content[::-1]
        file = _written(as_bytes(order, ending), f"same{ending}")
        try:
            found[ending] = load_questions(file).questions
        except UserError as error:
            found[ending] = str(error).split("(")[-1]
        finally:
            file.unlink()
    first = found[".jsonl"]
    assert all(other == first for other in found.values()), found


def check_verdicts(given: tuple[list[dict[str, Any]], str]) -> None:
    content, ending = given
    file = _written(as_bytes(content, ending), f"verdicts{ending}")
    try:
        assert set(read_verdicts(str(file)).values()) <= {"right", "wrong", "abstain"}
    finally:
        file.unlink()


def check_columns(given: tuple[str, dict[str, Any]]) -> None:
    """Named columns, or a sentence; the parts of a row that they name."""
    named, row = given
    columns = read_columns(named)
    if columns is not None:
        columns.check(row, "a row")
        assert set(columns.normal(row)) == set(columns.theirs)


def check_place(given: str) -> None:
    """An address or a name is taken apart, or refused; a path of any text is no error of ours."""
    if given.startswith("hub:"):
        read_address(given)
    elif not os.path.exists(given):
        load_questions(given)


TARGETS = (
    Target(
        name="question files",
        inputs=seeded(_file),
        check=check_file,
        share=14,
    ),
    Target(name="formats agree", inputs=plain_rows, check=check_formats, share=1.5),
    Target(
        name="files of verdicts",
        inputs=seeded(_verdicts),
        check=check_verdicts,
        share=4,
    ),
    Target(
        name="columns",
        inputs=seeded(_columns),
        check=check_columns,
        share=8,
    ),
    Target(
        name="places of data",
        inputs=seeded(_place),
        check=check_place,
        share=6,
    ),
)
