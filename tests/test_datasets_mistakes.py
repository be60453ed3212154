"""Mistakes in own files: one sentence each, word by word."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from anchorscope.datasets import load_questions
from anchorscope.errors import UserError

GOOD = {"question": "Q?", "answers": ["a"]}
BAD_ROWS = {
    "no question column": (
        [{"text": "Q?", "answers": ["a"]}],
        "bad.jsonl has no column question. Columns there: text, answers. Needed: question, "
        "answers; optional: id, subject, relation, popularity, entity, split, ambiguous.",
    ),
    "neither column": (
        [{}],
        "bad.jsonl has no column question and no column answers. Columns there: none. Needed: "
        "question, answers; optional: id, subject, relation, popularity, entity, split, ambiguous.",
    ),
    "empty question": (
        [GOOD, {"question": " \n", "answers": ["a"]}],
        "Row 2 of bad.jsonl has an empty question. Fill it in or remove the row.",
    ),
    "no question in one row": (
        [GOOD, {"answers": ["a"]}],
        "Row 2 of bad.jsonl has an empty question. Fill it in or remove the row.",
    ),
    "no answers": (
        [GOOD, {"question": "R?", "answers": []}],
        "Row 2 of bad.jsonl has no answers. Fill them in or remove the row.",
    ),
    "blank answers": (
        [GOOD, {"question": "R?", "answers": " | "}],
        "Row 2 of bad.jsonl has no answers. Fill them in or remove the row.",
    ),
    "answer missing": (
        [GOOD, {"question": "R?", "answer": None}],
        "Row 2 of bad.jsonl has no answers. Fill them in or remove the row.",
    ),
    "a Python list": (
        [{"question": "Q?", "answers": "['a', 'b']"}],
        "Row 1 of bad.jsonl: answers begins with [ but is no JSON list: \"['a', 'b']\". "
        'Write ["a", "b"] or a | b.',
    ),
    "an object for answers": (
        [{"question": "Q?", "answers": {"a": 1}}],
        "Row 1 of bad.jsonl: answers must be text, not {'a': 1}.",
    ),
    "a truth value for an answer": (
        [{"question": "Q?", "answers": [True]}],
        "Row 1 of bad.jsonl: answers must be text, not True.",
    ),
    "a list for a question": (
        [{"question": ["Q?"], "answers": ["a"]}],
        "Row 1 of bad.jsonl: question must be text, not ['Q?'].",
    ),
    "half a character": (
        [{"question": "Q\ud800?", "answers": ["a"]}],
        "Row 1 of bad.jsonl: question holds half a character (a lone surrogate).",
    ),
    "popularity in words": (
        [{**GOOD, "popularity": "many"}],
        "Row 1 of bad.jsonl: popularity must be a number, not 'many'.",
    ),
    "endless popularity": (
        [{**GOOD, "popularity": float("inf")}],
        "Row 1 of bad.jsonl: popularity must be a number, not inf.",
    ),
    "a doubtful flag": (
        [{**GOOD, "ambiguous": "maybe"}],
        "Row 1 of bad.jsonl: ambiguous must be true or false, not 'maybe'.",
    ),
    "an id twice": (
        [{**GOOD, "id": 7}, {**GOOD, "id": 8}, {"question": "R?", "answer": "a", "id": "7"}],
        "Rows 1 and 3 of bad.jsonl have the same id '7'. Give each row its own, or leave the "
        "column out.",
    ),
    "no subject found": (
        [{**GOOD, "subject": "Emma"}],
        "None of the 1 subjects of bad.jsonl stands in its question. A subject is the part of the "
        "question that names what is asked about, as written there.",
    ),
    "all ambiguous": (
        [{**GOOD, "ambiguous": True}],
        "No question of bad is left (1 ambiguous). Give other questions.",
    ),
    "two mistakes, the first of them named": (
        [{**GOOD, "id": "1"}, {**GOOD, "id": "1"}, {**GOOD, "id": ["1"]}],
        "Rows 1 and 2 of bad.jsonl have the same id '1'. Give each row its own, or leave the "
        "column out.",
    ),
    "an id that is none before two that are the same": (
        [{**GOOD, "id": ["1"]}, {**GOOD, "id": "1"}, {**GOOD, "id": "1"}],
        "Row 1 of bad.jsonl: id must be text, not ['1'].",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows(tmp_path: Path, case: str) -> None:
    rows, message = BAD_ROWS[case]
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_questions(path)
    assert str(caught.value) == message


ADVICE = "Is it whole, and does its extension say what it is?"
WHOLE = gzip.compress(b'{"question": "Q?", "answers": ["a"]}\n' * 1000)
BAD_FILES = {
    "bad.jsonl": (b'{"question": "Q?", "answers": ["a"]}\n{"quest', f"line 2 is no JSON. {ADVICE}"),
    "list.jsonl": (b'["Q?", "a"]\n', f"line 1 is no JSON object. {ADVICE}"),
    "latin.jsonl": (b'{"question": "\xe9"}', "'utf-8' codec can't decode byte 0xe9 in position 14"),
    "torn.jsonl.gz": (WHOLE[:-9], "Compressed file ended before the end-of-stream marker"),
    "plain.jsonl.gz": (b'{"question": "Q?"}', "Not a gzipped file (b'{\"')"),
    "bad.json": (b"{", "Expecting property name enclosed in double quotes: line 1 column 2"),
    "deep.json": (b"[" * 100_000, "maximum recursion depth exceeded"),
    "one.json": (b'{"question": "Q?"}', f"it holds no list of objects. {ADVICE}"),
    "wide.csv": (b"question,answer\nQ?,a\nR?,b,c\n", "row 2 has more fields than the header."),
    "quote.csv": (b'question,answer\n"Q"?,a\n', "',' expected after '\"'."),
    "bad.parquet": (b"question", ""),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    content, reason = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_questions(tmp_path / name)
    kind = name[name.index(".") :]
    assert str(caught.value).startswith(f"{name} could not be read as {kind}: {reason}")
    assert str(caught.value).endswith(ADVICE)


@pytest.mark.parametrize(
    ("name", "content"),
    [("no.jsonl", ""), ("no.json", "[]"), ("no.csv", "question,answers\n"), ("no.tsv", "")],
)
def test_empty_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        load_questions(tmp_path / name)
    assert str(caught.value) == f"{name} has no rows. It needs at least one question."


KINDS = ".jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet"
NAMES = (
    "atlas, atlas-compare, popqa, triviaqa, hotpotqa, nq, simpleqa, simpleqa-verified, "
    "webquestions, sciq"
)


def test_unknown_names_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "q.xlsx").write_bytes(b"PK")
    (tmp_path / "noextension").write_bytes(b"")
    for data, message in {
        "popqaa": f"Unknown dataset or file 'popqaa'. Accepted: {NAMES}. "
        f"Or hub:ORG/NAME, or an existing file: {KINDS}.",
        "no/such.csv": f"Unknown dataset or file 'no/such.csv'. Accepted: {NAMES}. "
        f"Or hub:ORG/NAME, or an existing file: {KINDS}.",
        str(tmp_path): f"{tmp_path} is a folder. Give one file: {KINDS}.",
        tmp_path / "q.xlsx": f"Unknown kind of file 'q.xlsx'. Accepted: {KINDS}.",
        tmp_path / "noextension": f"Unknown kind of file 'noextension'. Accepted: {KINDS}.",
        7: "Questions cannot come from a int. Accepted: a built-in name, a file, "
        "a list of Question.",
    }.items():
        with pytest.raises(UserError) as caught:
            load_questions(data)  # pyright: ignore[reportArgumentType]
        assert str(caught.value) == message


def test_a_text_that_no_path_can_be_is_unknown_too() -> None:
    for data in ("x" * 5000, "a\0b"):
        with pytest.raises(UserError, match="Unknown dataset or file"):
            load_questions(data)
