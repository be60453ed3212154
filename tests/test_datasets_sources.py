"""The four datasets: rows in the hub's, the authors' and our own shape; names; the hub itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import anchorscope
from anchorscope.datasets import DATASETS, load_questions
from anchorscope.datasets.hub import from_hub
from anchorscope.records import Question

POPQA_ROW = {
    "id": 4222362,
    "subj": "George Rankin",
    "prop": "occupation",
    "obj": "politician",
    "subj_id": 1850297,
    "prop_id": 22,
    "obj_id": 2834605,
    "s_aliases": '["George James Rankin"]',
    "o_aliases": '["political leader"]',
    "s_uri": "http://www.wikidata.org/entity/Q5543720",
    "o_uri": "http://www.wikidata.org/entity/Q82955",
    "s_wiki_title": "George Rankin",
    "o_wiki_title": "Politician",
    "s_pop": 142,
    "o_pop": 25692,
    "question": "What is George Rankin's occupation?",
    "possible_answers": '["politician", "political leader"]',
}
TRIVIAQA_ANSWER = {
    "aliases": ["Sunset Blvd", "Sunset Boulevard"],
    "normalized_aliases": ["sunset blvd", "sunset boulevard"],
    "matched_wiki_entity_name": "",
    "normalized_matched_wiki_entity_name": "",
    "normalized_value": "sunset boulevard",
    "type": "WikipediaEntity",
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
                "NormalizedValue": "sunset boulevard",
                "Type": "WikipediaEntity",
                "Value": "Sunset Boulevard",
            },
            "EntityPages": [],
            "Question": TRIVIAQA_ROW["question"],
            "QuestionId": "tc_33",
            "QuestionSource": "http://www.triviacountry.com/",
            "SearchResults": [],
        }
    ],
    "Domain": "unfiltered",
    "VerifiedEval": False,
    "Version": 1.0,
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


def loaded(path: Path) -> tuple[str, str, Question]:
    found = load_questions(path)
    (question,) = found.questions
    return found.name, found.title, question


def table(rows: list[dict]) -> str:
    """The rows as pandas writes a .tsv: quotes doubled inside quotes."""
    import pandas

    return pandas.DataFrame(rows).to_csv(sep="\t", index=False)


def test_popqa_as_its_authors_write_it(tmp_path: Path) -> None:
    path = tmp_path / "popQA.tsv"
    path.write_text(table([POPQA_ROW]), encoding="utf-8")
    assert '"[""politician""' in path.read_text()
    expected = replace(POPQA, id="popqa:all:4222362")
    assert loaded(path) == ("popqa", "PopQA", expected)
    assert loaded(path.rename(tmp_path / "anything_test.tsv")) == ("popqa", "PopQA", POPQA)


def test_triviaqa_as_its_authors_write_it(tmp_path: Path) -> None:
    path = tmp_path / "unfiltered-web-dev.json"
    path.write_text(json.dumps(TRIVIAQA_FILE))
    assert loaded(path) == ("triviaqa", "TriviaQA", TRIVIAQA)


def test_hotpotqa_as_its_authors_write_it(tmp_path: Path) -> None:
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps(HOTPOTQA_FILE))
    assert loaded(path) == ("hotpotqa", "HotpotQA", HOTPOTQA)
    assert "no" in {shot.answer for shot in load_questions(path).shots}


def test_nq_as_its_authors_write_it(tmp_path: Path) -> None:
    path = tmp_path / "NQ-open.dev.jsonl"
    path.write_text(json.dumps(NQ_ROW) + "\n")
    name, title, question = loaded(path)
    assert (name, title) == ("nq", "NQ")
    assert (question.text, question.answers) == (NQ_ROW["question"], tuple(NQ_ROW["answer"]))
    assert question.id.startswith("nq:dev:")


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


def hub_folder(path: Path, name: str, row: dict) -> Path:
    """A folder as the hub has it: a card that names config and split, and a parquet file."""
    place = DATASETS[name].hub
    assert place is not None
    path.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path / "rows.parquet")
    config = f"config_name: {place.config or 'default'}"
    files = f"data_files:\n  - split: {place.split}\n    path: rows.parquet"
    (path / "README.md").write_text(f"---\nconfigs:\n- {config}\n  {files}\n---\n")
    return path


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("popqa", POPQA_ROW, POPQA),
        ("triviaqa", TRIVIAQA_ROW, TRIVIAQA),
        ("hotpotqa", HOTPOTQA_ROW, HOTPOTQA),
        ("nq", NQ_ROW, None),
    ],
)
def test_the_hub_is_read_by_the_same_code_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, row: dict, expected: Question | None
) -> None:
    import datasets
    import datasets.config

    assert Path(anchorscope.__file__).parent not in Path(datasets.__file__).parents  # PyPI's
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = DATASETS[name]
    assert source.hub is not None
    place = replace(source.hub, path=str(hub_folder(tmp_path / "hub", name, row)))
    (draft,) = from_hub(source, place)
    if expected is None:
        assert (draft.question.text, draft.question.answers) == (row["question"], (*row["answer"],))
        assert draft.question.id.startswith("nq:dev:")
    else:
        assert draft.question == expected


def test_where_the_hub_has_the_datasets() -> None:
    places = {name: source.hub for name, source in DATASETS.items() if source.hub}
    assert {name: (hub.path, hub.config, hub.split) for name, hub in places.items()} == {
        "popqa": ("akariasai/PopQA", None, "test"),
        "triviaqa": ("mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation"),
        "hotpotqa": ("hotpotqa/hotpot_qa", "distractor", "validation"),
        "nq": ("google-research-datasets/nq_open", None, "validation"),
        "simpleqa": ("basicv8vc/SimpleQA", None, "test"),
        "simpleqa-verified": ("google/simpleqa-verified", None, "eval"),
        "webquestions": ("stanfordnlp/web_questions", None, "test"),
        "sciq": ("allenai/sciq", None, "test"),
    }


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
