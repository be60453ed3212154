"""Mistakes in own files: one sentence each, word by word."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from anchorscope.datasets import DATASETS, load_questions, remarks
from anchorscope.errors import UserError

GOOD = {"question": "Q?", "answers": ["a"]}
NEEDED = (
    "Needed: question, answers; optional: id, subject, relation, popularity, entity, split, "
    "ambiguous."
)
SKIP = "Or --skip-bad-rows (in Python skip_bad_rows=True) leaves it out."
BAD_FILES_OF_ROWS = [
    (
        [{"text": "Q?", "answers": ["a"]}],
        f"bad.jsonl has no column question. Columns there: text, answers. {NEEDED}",
    ),
    (
        [{"x": 1}],
        f"bad.jsonl has no column question and no column answers. Columns there: x. {NEEDED}",
    ),
    (
        [{**GOOD, "subject": "Emma"}],
        "None of the 1 subjects of bad.jsonl stands in its question. A subject is the part of the "
        "question that names what is asked about, as written there.",
    ),
    (
        [{**GOOD, "ambiguous": True}],
        "No question of bad is left (1 ambiguous). Give other questions.",
    ),
]
BAD_ROWS = [
    (
        {"question": " \n", "answers": ["a"]},
        " has an empty question. Fill it in or remove the row.",
    ),
    ({"answers": ["a"]}, " has an empty question. Fill it in or remove the row."),
    ({"question": "R?", "answers": []}, " has no answers. Fill them in or remove the row."),
    ({"question": "R?", "answers": " | "}, " has no answers. Fill them in or remove the row."),
    ({"question": "R?", "answer": None}, " has no answers. Fill them in or remove the row."),
    (
        {"question": "Q?", "answers": "['a', 'b']"},
        ': answers begins with [ but is no JSON list: "[\'a\', \'b\']". Write ["a", "b"] or a | b.',
    ),
    ({"question": "Q?", "answers": {"a": 1}}, ": answers must be text, not {'a': 1}."),
    ({"question": "Q?", "answers": [True]}, ": answers must be text, not True."),
    ({"question": ["Q?"], "answers": ["a"]}, ": question must be text, not ['Q?']."),
    (
        {"question": "Q\ud800?", "answers": ["a"]},
        ": question holds half a character (a lone surrogate).",
    ),
    ({**GOOD, "popularity": "many"}, ": popularity must be a number, not 'many'."),
    ({**GOOD, "popularity": float("inf")}, ": popularity must be a number, not inf."),
    ({**GOOD, "ambiguous": "maybe"}, ": ambiguous must be true or false, not 'maybe'."),
    ({**GOOD, "id": ["1"]}, ": id must be text, not ['1']."),
    (
        {**GOOD, "id": "7"},
        " has the id '7' of row 1. Give each row its own, or leave the column out.",
    ),
    ("x", " is no JSON object."),
]


def write(folder: Path, rows: list) -> Path:
    (folder / "bad.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "bad.jsonl"


def mistake(data: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        load_questions(data, **options)  # pyright: ignore[reportArgumentType]
    return str(caught.value)


@pytest.mark.parametrize(("rows", "message"), BAD_FILES_OF_ROWS)
def test_files_without_columns_subjects_or_questions(tmp_path, rows, message) -> None:
    assert mistake(write(tmp_path, rows)) == message


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_bad_row_is_named_or_skipped(tmp_path, row, message) -> None:
    path = write(tmp_path, [{**GOOD, "id": 7}, row])
    assert mistake(path) == f"Row 2 of bad.jsonl{message} {SKIP}"
    kept = load_questions(path, skip_bad_rows=True)
    assert (len(kept), kept.dropped) == (1, {"bad row": 1})


def test_all_bad_rows_are_named_at_once_and_counted_when_skipped(tmp_path: Path) -> None:
    good = [{"question": f"Q{n}?", "answer": "a"} for n in range(30)]
    rows = [row for one in good for row in (one, {"question": "", "answer": "a"})]
    path = write(tmp_path, [*rows, good[0]])
    lines = mistake(path).splitlines()
    assert lines[0] == "30 of 61 rows of bad.jsonl cannot be used:"
    assert lines[1] == "  Row 2 of bad.jsonl has an empty question. Fill it in or remove the row."
    assert lines[20].startswith("  Row 40 ") and lines[21] == "  and 10 more"
    kept = load_questions(path, skip_bad_rows=True)
    assert {question.text for question in kept} == {f"Q{n}?" for n in range(30)}
    assert kept.dropped == {"bad row": 30, "duplicate": 1}
    assert remarks(kept) == ["bad: 30 questions; left out: 30 bad row, 1 duplicate"]
    assert (
        repr(kept) == "QuestionSet('bad', 30 questions, left out: {'bad row': 30, 'duplicate': 1})"
    )


def test_a_question_far_longer_than_the_others_is_remarked_on(tmp_path: Path) -> None:
    rows = [{"question": f"Where is lake {n}?", "answer": "a"} for n in range(9)]
    long = {"question": "x" * 5000, "answer": "a", "id": "9"}
    (remark,) = remarks(load_questions(write(tmp_path, [*rows, long])))
    assert "5,000 characters" in remark and "half of the others have 16 or fewer" in remark
    assert "bad:all:9" in remark
    assert remarks(load_questions(write(tmp_path, rows))) == []


ADVICE = "Is it whole, and does its extension say what it is?"
WHOLE = gzip.compress(b'{"question": "Q?", "answers": ["a"]}\n' * 1000)
BAD_FILES = {
    "latin.jsonl": (b'{"question": "\xe9"}', "'utf-8' codec can't decode byte 0xe9 in position 14"),
    "torn.jsonl.gz": (WHOLE[:-9], "Compressed file ended before the end-of-stream marker"),
    "plain.jsonl.gz": (b'{"question": "Q?"}', "Not a gzipped file (b'{\"')"),
    "bad.json": (b"{", "Expecting property name enclosed in double quotes: line 1 column 2"),
    "deep.json": (b"[" * 100_000, "maximum recursion depth exceeded"),
    "one.json": (b'{"question": "Q?"}', f"it holds no list of objects. {ADVICE}"),
    "quote.csv": (b'question,answer\n"Q"?,a\n', "',' expected after '\"'."),
    "bad.parquet": (b"question", ""),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    content, reason = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    message, kind = mistake(tmp_path / name), name[name.index(".") :]
    assert message.startswith(f"{name} could not be read as {kind}: {reason}")
    assert message.endswith(ADVICE)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"question": "Q?", "answers": ["a"]}\n{"quest', "is no JSON."),
        ("b.csv", "question,answer\nQ?,a\nR?,b,c\n", "has more fields than the header."),
        ("c.json", '[{"question": "Q?", "answers": ["a"]}, 7]', "is no JSON object."),
    ],
)
def test_a_row_that_cannot_be_read_is_a_bad_row(tmp_path, name, content, message) -> None:
    (tmp_path / name).write_text(content)
    assert mistake(tmp_path / name) == f"Row 2 of {name} {message} {SKIP}"
    assert len(load_questions(tmp_path / name, skip_bad_rows=True)) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [("no.jsonl", ""), ("no.json", "[]"), ("no.csv", "question,answers\n"), ("no.tsv", "")],
)
def test_empty_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert mistake(tmp_path / name) == f"{name} has no rows. It needs at least one question."


KINDS = ".jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet"


def test_unknown_names_and_kinds_and_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "q.xlsx").write_bytes(b"PK")
    (tmp_path / "mine.csv").write_text("")
    known = f"Accepted: {', '.join(DATASETS)}. Or hub:ORG/NAME, or an existing file: {KINDS}."
    for data, message in {
        "popqaa": f"Unknown dataset or file 'popqaa'. {known} Did you mean 'popqa'?",
        "no/such.csv": f"Unknown dataset or file 'no/such.csv'. {known}",
        tmp_path / "mine.cvs": f"Unknown dataset or file '{tmp_path / 'mine.cvs'}'. {known} "
        f"Did you mean '{tmp_path / 'mine.csv'}'?",
        tmp_path: f"{tmp_path} is a folder. Give one file: {KINDS}.",
        tmp_path / "q.xlsx": f"Unknown kind of file 'q.xlsx'. Accepted: {KINDS}.",
        7: "Questions cannot come from a int. Accepted: a built-in name, a file, "
        "a list of Question.",
    }.items():
        assert mistake(data) == message
    for data in ("x" * 5000, "a\0b"):  # what no path can be
        assert mistake(data).startswith("Unknown dataset or file")
