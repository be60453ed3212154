"""Questions of files and lists: the same from every kind of file, mistakes named, limits drawn."""

from __future__ import annotations

import csv
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from anchorscope.datasets import DATASETS, load_questions, remarks
from anchorscope.errors import UserError
from anchorscope.records import Question

ROWS = [
    {"id": "a", "question": "Who wrote  Emma?", "answers": ["Jane Austen", "Austen"],
     "subject": "emma", "relation": "author", "popularity": 12.5, "split": "validation"},
    {"id": "b", "question": "Is water wet?", "answers": ["yes"], "entity": "Water"},
]  # fmt: skip
EXPECTED = {
    Question(id="mine:dev:a", dataset="mine", text="Who wrote Emma?",
             answers=("Jane Austen", "Austen"), subjects=("Emma",), relation="author",
             popularity=12.5, entity="emma"),
    Question(id="mine:all:b", dataset="mine", text="Is water wet?", answers=("yes",),
             entity="water"),
}  # fmt: skip
COLUMNS = ["id", "question", "answers", "subject", "relation", "popularity", "split", "entity"]


def write(path: Path, rows: list) -> Path:
    """Write the rows in the way that the extension asks for."""
    lines = "\n".join(map(json.dumps, rows))
    if path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".jsonl":  # with a byte order mark and blank lines, which are passed over
        path.write_text("\ufeff" + lines.replace("\n", "\n\n") + "\n\n", encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        kinds = {"answers": pyarrow.list_(pyarrow.string()), "popularity": pyarrow.float64()}
        schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
    else:
        comma = path.suffix == ".csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, delimiter="," if comma else "\t")
            table.writeheader()
            for row in rows:
                answers = " | ".join(row["answers"]) if comma else json.dumps(row["answers"])
                table.writerow({**row, "answers": answers})
    return path


def one(tmp_path: Path, **row: object) -> Question:
    (question,) = load_questions(write(tmp_path / "one.jsonl", [row]))
    return question


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet"])
def test_every_kind_of_file_gives_the_same_questions(tmp_path: Path, kind: str) -> None:
    found = load_questions(str(write(tmp_path / f"mine{kind}", ROWS)))
    assert set(found.questions) == EXPECTED
    assert (found.name, found.title, found.dropped) == ("mine", "mine", {})
    assert len(found.shots) == 4


def test_a_row_without_an_id_is_named_by_a_hash_of_its_text(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": str(n)} for n in range(5)]
    there = load_questions(write(tmp_path / "mine.jsonl", rows))
    moved = load_questions(write(tmp_path / "mine.jsonl", rows[3:]))
    assert set(moved.questions) <= set(there.questions)
    assert len({question.id for question in there}) == 5


def test_a_single_answer_is_not_split_and_nothing_is_evaluated(tmp_path: Path) -> None:
    assert one(tmp_path, question="Or?", answer="a | b").answers == ("a | b",)
    assert one(tmp_path, question="Or?", answers="a | b|a| ").answers == ("a", "b")
    assert one(tmp_path, question="Or?", answers='["a | b", 7]').answers == ("a | b", "7")
    assert one(tmp_path, question="Or?", answer=["x", "y"]).answers == ("x", "y")
    assert one(tmp_path, question="When?", answers=1969).answers == ("1969",)
    code = "__import__('os').abort()"
    question = one(tmp_path, question=code, answers=[code], subject=code)
    assert (question.text, question.answers, question.subjects) == (code, (code,), (code,))


def test_the_entity_is_the_subject_even_outside_the_text_else_the_text(tmp_path: Path) -> None:
    rows = [
        {"question": "Who wrote Emma?", "answer": "Austen", "subject": "EMMA"},
        {"question": "Who wrote it?", "answer": "Austen", "subject": "Emma"},
    ]
    found = {q.text: q for q in load_questions(write(tmp_path / "mine.jsonl", rows))}
    assert found["Who wrote Emma?"].subjects == ("Emma",)
    assert found["Who wrote it?"].subjects == ()
    assert {question.entity for question in found.values()} == {"emma"}
    assert one(tmp_path, question="Who  wrote EMMA?", answer="Austen").entity == "who wrote emma"


@pytest.mark.parametrize(
    ("popularity", "value"), [(None, None), (" ", None), (float("nan"), None), ("0", 0.0)]
)
def test_an_empty_popularity_is_none(tmp_path: Path, popularity: object, value: object) -> None:
    assert one(tmp_path, question="Q?", answer="a", popularity=popularity).popularity == value


@pytest.mark.parametrize("value", ["Who  wrote\tEmma? ", "\x1fa\x0bb\x0c", "é \xa0\u2003x", 7, 2.5])
def test_every_text_is_one_line(tmp_path: Path, value: object) -> None:
    question = one(tmp_path, question=value, answers=[value, "b"], id=value, relation=value)
    line = re.sub(r"\s+", " ", str(value)).strip()
    texts = (question.text, question.answers, question.id, question.relation)
    assert texts == (line, (line, "b"), f"one:all:{line}", line)


# --- Mistakes ---


GOOD = {"question": "Q?", "answers": ["a"]}
NEEDED = (
    "Needed: question, answers; optional: id, subject, relation, popularity, entity, split, "
    "ambiguous."
)
SKIP = "Or --skip-bad-rows (in Python skip_bad_rows=True) leaves it out."
BAD_FILES_OF_ROWS = [
    ([{"x": 1}],
     f"bad.jsonl has no column question and no column answers. Columns there: x. {NEEDED}"),
    ([{**GOOD, "subject": "Emma"}],
     "None of the 1 subjects of bad.jsonl stands in its question. A subject is the part of the "
     "question that names what is asked about, as written there."),
    ([{**GOOD, "ambiguous": True}],
     "No question of bad is left (1 ambiguous). Give other questions."),
]  # fmt: skip
BAD_ROWS = [
    ({"answers": ["a"]}, " has an empty question. Fill it in or remove the row."),
    ({"question": "R?", "answers": " | "}, " has no answers. Fill them in or remove the row."),
    ({"question": "R?", "answer": None}, " has no answers. Fill them in or remove the row."),
    ({"question": "Q?", "answers": "['a', 'b']"},
     ": answers begins with [ but is no JSON list: \"['a', 'b']\". Write [\"a\", \"b\"] or a | b."),
    ({"question": "Q?", "answers": {"a": 1}}, ": answers must be text, not {'a': 1}."),
    ({"question": "Q?", "answers": [True]}, ": answers must be text, not True."),
    ({"question": "Q\ud800?", "answers": ["a"]},
     ": question holds half a character (a lone surrogate)."),
    ({**GOOD, "popularity": float("inf")}, ": popularity must be a number, not inf."),
    ({**GOOD, "ambiguous": "maybe"}, ": ambiguous must be true or false, not 'maybe'."),
    ({**GOOD, "id": "7"},
     " has the id '7' of row 1. Give each row its own, or leave the column out."),
    ("x", " is no JSON object."),
]  # fmt: skip


def mistake(data: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        load_questions(data, **options)  # pyright: ignore[reportArgumentType]
    return str(caught.value)


@pytest.mark.parametrize(("rows", "message"), BAD_FILES_OF_ROWS)
def test_files_without_columns_subjects_or_questions(tmp_path, rows, message) -> None:
    assert mistake(write(tmp_path / "bad.jsonl", rows)) == message


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_bad_row_is_named_or_skipped(tmp_path, row, message) -> None:
    path = write(tmp_path / "bad.jsonl", [{**GOOD, "id": 7}, row])
    assert mistake(path) == f"Row 2 of bad.jsonl{message} {SKIP}"
    kept = load_questions(path, skip_bad_rows=True)
    assert (len(kept), kept.dropped) == (1, {"bad row": 1})


def test_all_bad_rows_are_named_at_once_and_counted_when_skipped(tmp_path: Path) -> None:
    good = [{"question": f"Where is lake {n}?", "answer": "a"} for n in range(30)]
    long = {"question": "x" * 5000, "answer": "a", "id": "9"}
    rows = [row for one in good for row in (one, {"question": "", "answer": "a"})]
    path = write(tmp_path / "bad.jsonl", [*rows, good[0], long])
    lines = mistake(path).splitlines()
    assert lines[0] == "30 of 62 rows of bad.jsonl cannot be used:"
    assert lines[1] == "  Row 2 of bad.jsonl has an empty question. Fill it in or remove the row."
    assert lines[20].startswith("  Row 40 ") and lines[21] == "  and 10 more"
    kept = load_questions(path, skip_bad_rows=True)
    assert kept.dropped == {"bad row": 30, "duplicate": 1}
    left_out, remark = remarks(kept)
    assert left_out == "bad: 31 questions; left out: 30 bad row, 1 duplicate"
    assert "5,000 characters" in remark and "half of the others have 17 or fewer" in remark
    assert "bad:all:9" in remark
    assert remarks(load_questions("atlas", limit=20)) == []


ADVICE = "Is it whole, and does its extension say what it is?"
WHOLE = gzip.compress(b'{"question": "Q?", "answers": ["a"]}\n' * 1000)
UNREADABLE = {
    "latin.jsonl": (b'{"question": "\xe9"}', "'utf-8' codec can't decode byte 0xe9 in position 14"),
    "torn.jsonl.gz": (WHOLE[:-9], "Compressed file ended before the end-of-stream marker"),
    "bad.json": (b"{", "Expecting property name enclosed in double quotes: line 1 column 2"),
    "deep.json": (b"[" * 100_000, "maximum recursion depth exceeded"),
    "one.json": (b'{"question": "Q?"}', f"it holds no list of objects. {ADVICE}"),
    "quote.csv": (b'question,answer\n"Q"?,a\n', "',' expected after '\"'."),
    "bad.parquet": (b"question", ""),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    content, reason = UNREADABLE[name]
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


KINDS = ".jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet"


def test_unknown_names_and_kinds_and_what_was_meant(tmp_path: Path) -> None:
    for name, text in {"q.xlsx": "PK", "mine.csv": "", "no.csv": "question,answers\n"}.items():
        (tmp_path / name).write_text(text)
    accepted = f"Accepted: {', '.join(DATASETS)}. Or hub:ORG/NAME, or an existing file: {KINDS}."
    for data, message in {
        "popqaa": f"Unknown dataset or file 'popqaa'. {accepted} Did you mean 'popqa'?",
        tmp_path / "mine.cvs": f"Unknown dataset or file '{tmp_path / 'mine.cvs'}'. {accepted} "
        f"Did you mean '{tmp_path / 'mine.csv'}'?",
        tmp_path: f"{tmp_path} is a folder. Give one file: {KINDS}.",
        tmp_path / "q.xlsx": f"Unknown kind of file 'q.xlsx'. Accepted: {KINDS}.",
        tmp_path / "no.csv": "no.csv has no rows. It needs at least one question.",
        7: "Questions cannot come from a int. Accepted: a built-in name, a file, "
        "a list of Question.",
    }.items():
        assert mistake(data) == message
    for data in ("x" * 5000, "a\0b"):  # what no path can be
        assert mistake(data).startswith("Unknown dataset or file")


# --- Duplicates, limits and lists ---


def question(number: int, **changes: object) -> Question:
    base = Question(
        id=f"mine:test:{number}", dataset="mine", text=f"What is {number}?", answers=(str(number),)
    )
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


MANY = [question(number) for number in range(200)]


def test_a_limit_draws_the_same_questions_whatever_the_order_or_the_new_rows() -> None:
    small, large = load_questions(MANY, limit=20), load_questions(MANY, limit=90)
    everything = load_questions(MANY, limit=10_000)
    assert len(small) == 20
    assert large.questions[:20] == small.questions
    assert everything.questions[:90] == large.questions
    assert sorted(q.id for q in everything) == sorted(q.id for q in MANY)
    assert load_questions(MANY[::-1], limit=50) == load_questions(MANY, limit=50)
    new = [question(number) for number in range(200, 300)]
    after = load_questions([*new, *MANY]).questions
    assert tuple(q for q in after if q in set(MANY)) == everything.questions
    other = load_questions(MANY, limit=90, seed=1)
    assert 20 <= len(set(large.questions) & set(other.questions)) <= 60  # about 90 * 90 / 200


@pytest.mark.parametrize("limit", [0, 1.5, True, "9"])
def test_bad_limits(limit: object) -> None:
    assert mistake(MANY, limit=limit) == (
        f"limit must be a whole number of questions, at least 1, not {limit!r}. "
        "Leave it out to take them all."
    )


def test_of_duplicates_one_stays_and_of_ambiguous_questions_none(tmp_path: Path) -> None:
    texts = {"b": "What is 1?", "a": "what  is 1", "c": "What is 1 ?"}
    twins = [question(1, id=f"mine:test:{key}", text=text) for key, text in texts.items()]
    for data in (twins, twins[::-1]):
        found = load_questions([*data, question(2)])
        assert {q.id for q in found} == {"mine:test:a", "mine:test:2"}
        assert found.dropped == {"duplicate": 2}
    others = [question(1), question(3, text="What is 1?"), question(4, text="What is 1?")]
    found = load_questions([*others, question(2)])
    assert ([q.id for q in found], found.dropped) == (["mine:test:2"], {"ambiguous": 3})
    same = [question(1, answers=("One", "1")), question(5, text="What is 1?", answers=("1", "one"))]
    assert load_questions(same).dropped == {"duplicate": 1}
    texts = ("What is C?", "What is C++?", "What is C#?")
    found = load_questions([question(n, text=text) for n, text in enumerate(texts)])
    assert (len(found), found.dropped) == (3, {})
    marked = [{**GOOD, "question": f"Q{n}?", "ambiguous": n == 0} for n in range(3)]
    assert load_questions(write(tmp_path / "m.jsonl", marked)).dropped == {"ambiguous": 1}


def test_a_list_keeps_its_questions_and_the_title_and_shots_of_a_known_dataset() -> None:
    found = load_questions(MANY)
    assert set(found.questions) == set(MANY)
    assert (found.name, found.title) == ("mine", "mine")
    whole = load_questions("atlas", limit=5)
    assert load_questions(list(whole)) == whole


BAD_LISTS = [
    ([], "The list holds nothing. It needs at least one Question, and nothing else."),
    ([question(1), "Q?"],
     "The list holds Question, str. It needs at least one Question, and nothing else."),
    ([question(1), question(2, dataset="other")],
     "The list has questions of 2 datasets: mine, other. Load each dataset by itself."),
    ([question(1), question(2, id="mine:test:1")],
     "2 questions of the list have the same id 'mine:test:1'."),
    ([question(1, answers=())],
     "Question 1 of the list needs an id, a dataset, a text and answers."),
    ([question(1, subjects=("two",))],
     "Question 1 of the list has the subjects 'two'. Each has to be an exact part of its text."),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), BAD_LISTS)
def test_bad_lists(data: list, message: str) -> None:
    assert mistake(data) == message


# --- The real datasets, where they lie beside the checkout ---


FOLDER = Path(__file__).parents[2] / "shared" / "datasets"
REAL = {"popqa": "popqa", "triviaqa": "triviaqa", "hotpotqa": "hotpotqa", "nq_open": "nq"}


@pytest.mark.skipif(
    not (FOLDER / "popqa.jsonl.gz").exists(),
    reason="no folder ../shared/datasets",
)
@pytest.mark.parametrize("file", REAL)
def test_every_row_of_a_real_dataset_is_a_question_or_counted(file: str) -> None:
    found = load_questions(FOLDER / f"{file}.jsonl.gz")
    with gzip.open(FOLDER / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = {str(row.get("id")): row for row in map(json.loads, lines)}
    assert found.name == REAL[file]
    assert len({question.id for question in found}) == len(found)
    for question in found:
        assert all(subject in question.text for subject in question.subjects)
        row = rows.get(question.id.split(":", 2)[2])
        if file == "popqa":
            assert row is not None and not row.get("ambiguous")
            assert question.answers[0] == " ".join(row["answers"][0].split())
            assert (question.relation, question.popularity) == (row["property"], row["popularity"])
        if file == "triviaqa" and row and "canonical" in row:
            assert question.answers[0] == " ".join(row["canonical"].split())
