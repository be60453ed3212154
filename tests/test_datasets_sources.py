"""The four datasets: rows in the hub's, the authors' and our own shape; names; the hub itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from anchorscope.datasets import DATASETS, load_questions
from anchorscope.records import Question

POPQA_ROW = {  # some of the columns that are not read are left out, here and below
    "id": 4222362,
    "subj": "George Rankin",
    "prop": "occupation",
    "obj": "politician",
    "s_aliases": '["George James Rankin"]',
    "s_pop": 142,
    "o_pop": 25692,
    "question": "What is George Rankin's occupation?",
    "possible_answers": '["politician", "political leader"]',
}
TRIVIAQA_ANSWER = {
    "aliases": ["Sunset Blvd", "Sunset Boulevard"],
    "normalized_aliases": ["sunset blvd", "sunset boulevard"],
    "value": "Sunset Boulevard",
}
TRIVIAQA_ROW = {
    "question": "Which Lloyd Webber musical premiered in the US on 10th December 1993?",
    "question_id": "tc_33",
    "question_source": "http://www.triviacountry.com/",
    "answer": TRIVIAQA_ANSWER,
}
TRIVIAQA_FILE = {
    "Data": [
        {
            "Answer": {
                "Aliases": ["Sunset Blvd", "Sunset Boulevard"],
                "NormalizedAliases": ["sunset blvd", "sunset boulevard"],
                "Value": "Sunset Boulevard",
            },
            "Question": TRIVIAQA_ROW["question"],
            "QuestionId": "tc_33",
        }
    ],
    "Domain": "unfiltered",
}
HOTPOTQA_ROW = {
    "id": "5a8b57f25542995d1e6f1371",
    "question": "Were Scott Derrickson and Ed Wood of the same nationality?",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
}
HOTPOTQA_FILE = [
    {
        "_id": HOTPOTQA_ROW["id"],
        **{key: HOTPOTQA_ROW[key] for key in ("question", "answer", "type", "level")},
        "supporting_facts": [["Scott Derrickson", 0], ["Ed Wood", 0]],
        "context": [["Ed Wood", ["Ed Wood is a film.", " It is from 1994."]]],
    }
]
NQ_ROW = {
    "question": "when was the last time anyone was on the moon",
    "answer": ["14 December 1972 UTC", "December 1972"],
}
POPQA = Question(
    id="popqa:test:4222362",
    dataset="popqa",
    text="What is George Rankin's occupation?",
    answers=("politician", "political leader"),
    subjects=("George Rankin",),
    relation="occupation",
    popularity=142.0,
    entity="george rankin",
)
TRIVIAQA = Question(
    id="triviaqa:dev:tc_33",
    dataset="triviaqa",
    text=TRIVIAQA_ROW["question"],
    answers=("Sunset Boulevard", "Sunset Blvd"),
    entity="which lloyd webber musical premiered in the us on 10th december 1993",
)
HOTPOTQA = Question(
    id="hotpotqa:dev:5a8b57f25542995d1e6f1371",
    dataset="hotpotqa",
    text=HOTPOTQA_ROW["question"],
    answers=("yes",),
    relation="comparison",
    entity="were scott derrickson and ed wood of the same nationality",
)

NQ = Question(
    id="nq:dev:01ed43cde16e08cb",  # a hash of the text: NQ-open has no ids
    dataset="nq",
    text=NQ_ROW["question"],
    answers=("14 December 1972 UTC", "December 1972"),
    entity=NQ_ROW["question"],
)


def loaded(path: Path) -> tuple[str, str, Question]:
    found = load_questions(path)
    (question,) = found.questions
    return found.name, found.title, question


def test_popqa_as_its_authors_write_it(tmp_path: Path) -> None:
    path = tmp_path / "popQA.tsv"
    path.write_text(pandas.DataFrame([POPQA_ROW]).to_csv(sep="\t", index=False), encoding="utf-8")
    assert '"[""politician""' in path.read_text()  # quotes doubled inside quotes
    expected = replace(POPQA, id="popqa:all:4222362")
    assert loaded(path) == ("popqa", "PopQA", expected)
    assert loaded(path.rename(tmp_path / "anything_test.tsv")) == ("popqa", "PopQA", POPQA)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("unfiltered-web-dev.json", TRIVIAQA_FILE, ("triviaqa", "TriviaQA", TRIVIAQA)),
        ("hotpot_dev_distractor_v1.json", HOTPOTQA_FILE, ("hotpotqa", "HotpotQA", HOTPOTQA)),
        ("NQ-open.dev.jsonl", NQ_ROW, ("nq", "NQ", NQ)),
    ],
)
def test_the_others_as_their_authors_write_them(tmp_path: Path, file, content, expected) -> None:
    (tmp_path / file).write_text(json.dumps(content) + "\n")
    assert loaded(tmp_path / file) == expected


@pytest.mark.parametrize(
    ("file", "name", "title"),
    [
        ("popqa.jsonl", "popqa", "PopQA"),
        ("PopQA_test.jsonl", "popqa", "PopQA"),
        ("hotpotqa.jsonl", "hotpotqa", "HotpotQA"),
        ("hotpot_qa-validation.jsonl", "hotpotqa", "HotpotQA"),
        ("nq.jsonl", "nq", "NQ"),
        ("nq_open.jsonl", "nq", "NQ"),
        ("triviaqa.jsonl", "triviaqa", "TriviaQA"),
        ("trivia_qa.jsonl", "triviaqa", "TriviaQA"),
        ("nqmine.jsonl", "nqmine", "nqmine"),
        ("my.trivia.jsonl", "my.trivia", "my.trivia"),
        ("a:b.jsonl", "a-b", "a-b"),
    ],
)
def test_a_file_is_named_by_its_dataset(tmp_path: Path, file: str, name: str, title: str) -> None:
    row = {"id": "x:1", "question": "Q?", "answers": ["a"], "split": "test"}
    (tmp_path / file).write_text(json.dumps(row))
    found = loaded(tmp_path / file)
    assert found[:2] == (name, title)
    assert found[2].id == f"{name}:test:x:1"


OFFLINE = """
from anchorscope.datasets import load_questions
from anchorscope.errors import UserError
try:
    load_questions("hotpotqa")
except UserError as error:
    print(error)
"""


def python(code: str, **env: str) -> str:
    source = Path(__file__).resolve().parents[1] / "src"
    env = {**os.environ, "PYTHONPATH": str(source), **env}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_offline_it_says_which_files_serve(tmp_path: Path) -> None:
    assert python(OFFLINE, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) == (
        "HotpotQA (hotpotqa/hotpot_qa) could not be reached on the hub (ConnectionError). "
        "Try again with a connection, or give a file: the authors' JSON (a list of {_id, "
        "question, answer, type}), or a .jsonl, .jsonl.gz, .json, .csv, .tsv or .parquet file "
        "with the columns question and answers."
    )


def test_importing_is_light() -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'pandas', 'pyarrow'}"
    code = f"import sys, anchorscope.datasets; print(sorted({heavy} & set(sys.modules)))"
    assert python(code) == "[]"


def test_shots_are_short_and_four() -> None:
    for source in DATASETS.values():
        assert len(source.shots) == 4
        assert all(len(shot.answer.split()) <= 3 for shot in source.shots)
    four = [DATASETS[name].shots for name in ("popqa", "triviaqa", "nq")]
    assert four[0] == four[1] == four[2] != DATASETS["hotpotqa"].shots
