"""Own files: the same questions from every kind of file, and what a row may hold."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from anchorscope.datasets import load_questions
from anchorscope.records import Question

ROWS = [
    {
        "id": "a",
        "question": "Who wrote  Emma?",
        "answers": ["Jane Austen", "Austen"],
        "subject": "emma",
        "relation": "author",
        "popularity": 12.5,
        "split": "validation",
    },
    {"id": "b", "question": "Is water wet?", "answers": ["yes"], "entity": "Water"},
]
EXPECTED = {
    Question(
        id="mine:dev:a",
        dataset="mine",
        text="Who wrote Emma?",
        answers=("Jane Austen", "Austen"),
        subjects=("Emma",),
        relation="author",
        popularity=12.5,
        entity="emma",
    ),
    Question(
        id="mine:all:b",
        dataset="mine",
        text="Is water wet?",
        answers=("yes",),
        entity="water",
    ),
}
COLUMNS = ["id", "question", "answers", "subject", "relation", "popularity", "split", "entity"]


def write(path: Path, rows: list[dict]) -> Path:
    """Writes the rows in the way the extension asks for."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".jsonl":
        path.write_text(lines, encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, _schema()), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            mark = "," if path.suffix == ".csv" else "\t"
            table = csv.DictWriter(file, COLUMNS, delimiter=mark)
            table.writeheader()
            joined = " | " if path.suffix == ".csv" else None
            for row in rows:
                answers = row["answers"]
                text = joined.join(answers) if joined else json.dumps(answers)
                table.writerow({**row, "answers": text})
    return path


def _schema() -> pyarrow.Schema:
    kinds = {"answers": pyarrow.list_(pyarrow.string()), "popularity": pyarrow.float64()}
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet"])
def test_every_kind_of_file_gives_the_same_questions(tmp_path: Path, kind: str) -> None:
    found = load_questions(write(tmp_path / f"mine{kind}", ROWS))
    assert set(found.questions) == EXPECTED
    assert (found.name, found.title, found.dropped) == ("mine", "mine", {})
    assert len(found.shots) == 4


def test_a_file_can_be_named_by_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", ROWS)
    assert load_questions(str(path)) == load_questions(path)


def test_a_byte_order_mark_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    text = "\ufeff" + json.dumps(ROWS[0]) + "\n\n" + json.dumps(ROWS[1]) + "\n\n"
    path.write_text(text, encoding="utf-8")
    assert set(load_questions(path).questions) == EXPECTED


def one(tmp_path: Path, **row: object) -> Question:
    (question,) = load_questions(write(tmp_path / "one.jsonl", [row]))
    return question


def test_a_row_without_an_id_is_known_by_its_text(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": str(n)} for n in range(5)]
    there = load_questions(write(tmp_path / "mine.jsonl", rows))
    moved = load_questions(write(tmp_path / "mine.jsonl", rows[3:]))
    assert set(moved.questions) <= set(there.questions)
    assert len({question.id for question in there}) == 5


def test_a_single_answer_is_not_taken_apart(tmp_path: Path) -> None:
    assert one(tmp_path, question="Or?", answer="a | b").answers == ("a | b",)
    assert one(tmp_path, question="Or?", answers="a | b|a| ").answers == ("a", "b")
    assert one(tmp_path, question="Or?", answers='["a | b", 7]').answers == ("a | b", "7")
    assert one(tmp_path, question="Or?", answer=["x", "y"]).answers == ("x", "y")
    assert one(tmp_path, question="When?", answers=1969).answers == ("1969",)


def test_text_is_never_evaluated(tmp_path: Path) -> None:
    text = "__import__('os').abort()"
    question = one(tmp_path, question=text, answers=[text], subject=text)
    assert (question.text, question.answers, question.subjects) == (text, (text,), (text,))


def test_a_subject_that_is_not_in_the_text_is_left_out_but_still_the_entity(tmp_path: Path) -> None:
    rows = [
        {"question": "Who wrote Emma?", "answer": "Austen", "subject": "EMMA"},
        {"question": "Who wrote it?", "answer": "Austen", "subject": "Emma"},
    ]
    found = {q.text: q for q in load_questions(write(tmp_path / "mine.jsonl", rows))}
    assert found["Who wrote Emma?"].subjects == ("Emma",)
    assert found["Who wrote it?"].subjects == ()
    assert {question.entity for question in found.values()} == {"emma"}


def test_without_a_subject_the_text_is_the_entity(tmp_path: Path) -> None:
    assert one(tmp_path, question="Who  wrote EMMA?", answer="Austen").entity == "who wrote emma"


def test_an_empty_popularity_is_none(tmp_path: Path) -> None:
    for empty in (None, "", " ", "nan", float("nan")):
        assert one(tmp_path, question="Q?", answer="a", popularity=empty).popularity is None
    assert one(tmp_path, question="Q?", answer="a", popularity="0").popularity == 0.0


# Texts whose white space is of every kind, in ASCII and beyond it, and values that are no text.
SPACED = ["Who  wrote\tEmma? ", "\x1fa\x0bb\x0c", "é \xa0\u2003x", "\u3000日 本", 7, 2.5]


@pytest.mark.parametrize("value", SPACED)
def test_every_text_is_one_line(tmp_path: Path, value: object) -> None:
    path = tmp_path / "mine.jsonl"
    row = {"question": value, "answers": [value, "b"], "id": value, "relation": value}
    path.write_text(json.dumps(row), encoding="utf-8")
    (question,) = load_questions(path)
    line = re.sub(r"\s+", " ", str(value)).strip()
    told = (question.text, question.answers, question.id, question.relation)
    assert told == (line, (line, "b"), f"mine:all:{line}", line)
