"""The real datasets, where a folder of them is at hand."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from anchorscope.datasets import load_questions

NEARBY = Path(__file__).resolve().parents[2] / "shared" / "datasets"
FOLDER = Path(os.environ.get("ANCHORSCOPE_DATASETS", NEARBY))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "popqa.jsonl.gz").exists(),
    reason="no folder with popqa.jsonl.gz; name it in ANCHORSCOPE_DATASETS",
)
FILES = {
    "popqa.jsonl.gz": ("popqa", "PopQA"),
    "triviaqa.jsonl.gz": ("triviaqa", "TriviaQA"),
    "hotpotqa.jsonl.gz": ("hotpotqa", "HotpotQA"),
    "nq_open.jsonl.gz": ("nq", "NQ"),
}


def rows(file: str) -> list[dict]:
    with gzip.open(FOLDER / file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("file", FILES)
def test_every_row_is_a_question_or_counted(file: str) -> None:
    found = load_questions(FOLDER / file)
    assert (found.name, found.title) == FILES[file]
    assert len(found) + sum(found.dropped.values()) == len(rows(file))
    assert len({question.id for question in found}) == len(found)
    splits = Counter(question.id.split(":")[1] for question in found)
    assert set(splits) == {row["split"] for row in rows(file)}
    for question in found:
        assert all(subject in question.text for subject in question.subjects)


def test_popqa_row_by_row() -> None:
    found = load_questions(FOLDER / "popqa.jsonl.gz")
    raw = {f"popqa:test:{row['id']}": row for row in rows("popqa.jsonl.gz")}
    flagged = {key for key, row in raw.items() if row.get("ambiguous")}
    assert not flagged & {question.id for question in found}
    assert found.dropped["ambiguous"] >= len(flagged)
    for question in found:
        row = raw[question.id]
        assert question.answers[0] == " ".join(row["answers"][0].split())
        assert question.relation == row["property"]
        assert question.popularity == row["popularity"]
        assert question.subjects or not row["subject"], question.text


def test_triviaqa_has_its_main_answer_first() -> None:
    found = {question.id: question for question in load_questions(FOLDER / "triviaqa.jsonl.gz")}
    known = [row for row in rows("triviaqa.jsonl.gz") if "canonical" in row]
    checked = [row for row in known if f"triviaqa:dev:{row['id']}" in found]
    assert len(checked) > 2000
    for row in checked:
        assert found[f"triviaqa:dev:{row['id']}"].answers[0] == " ".join(row["canonical"].split())


def test_hotpotqa_goes_by_its_own_ids() -> None:
    own = {row["original_id"] for row in rows("hotpotqa.jsonl.gz")}
    for question in load_questions(FOLDER / "hotpotqa.jsonl.gz", limit=100):
        assert question.id.split(":", 2)[2] in own
        assert question.relation in ("bridge", "comparison")
