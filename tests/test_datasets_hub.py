"""The sets of the field: rows as the hub and the authors write them; any set of the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from anchorscope.datasets import DATASETS, load_questions
from anchorscope.datasets.rows import from_hub, read_address
from anchorscope.errors import UserError
from anchorscope.records import Question

SEEN = json.loads(Path(__file__).with_name("cases").joinpath("hub_rows.json").read_text())
ROWS_OF_THE_HUB, FILES = SEEN["rows of the hub"], SEEN["files of the authors"]
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
    text=ROWS_OF_THE_HUB["triviaqa"]["question"],
    answers=("Sunset Boulevard", "Sunset Blvd"),
    entity="which lloyd webber musical premiered in the us on 10th december 1993",
)
HOTPOTQA = Question(
    id="hotpotqa:dev:5a8b57f25542995d1e6f1371",
    dataset="hotpotqa",
    text=ROWS_OF_THE_HUB["hotpotqa"]["question"],
    answers=("yes",),
    relation="comparison",
    entity="were scott derrickson and ed wood of the same nationality",
)

NQ = Question(
    id="nq:dev:01ed43cde16e08cb",  # a hash of the text: NQ-open has no ids
    dataset="nq",
    text=ROWS_OF_THE_HUB["nq"]["question"],
    answers=("14 December 1972 UTC", "December 1972"),
    entity=ROWS_OF_THE_HUB["nq"]["question"],
)


def loaded(path: Path) -> tuple[str, str, Question]:
    found = load_questions(path)
    (question,) = found.questions
    return found.name, found.title, question


def test_popqa_as_its_authors_write_it(tmp_path: Path) -> None:
    path = tmp_path / "popQA.tsv"
    path.write_text(
        pandas.DataFrame([ROWS_OF_THE_HUB["popqa"]]).to_csv(sep="\t", index=False), encoding="utf-8"
    )
    assert '"[""politician""' in path.read_text()  # quotes doubled inside quotes
    expected = replace(POPQA, id="popqa:all:4222362")
    assert loaded(path) == ("popqa", "PopQA", expected)
    assert loaded(path.rename(tmp_path / "anything_test.tsv")) == ("popqa", "PopQA", POPQA)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("unfiltered-web-dev.json", ("triviaqa", "TriviaQA", TRIVIAQA)),
        ("hotpot_dev_distractor_v1.json", ("hotpotqa", "HotpotQA", HOTPOTQA)),
        ("NQ-open.dev.jsonl", ("nq", "NQ", NQ)),
    ],
)
def test_the_others_as_their_authors_write_them(tmp_path: Path, file, expected) -> None:
    (tmp_path / file).write_text(json.dumps(FILES[file]) + "\n")
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


def test_without_a_hub_it_says_which_files_serve(monkeypatch) -> None:
    """Offline, or where the hub cannot be reached."""

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UserError) as caught:
        load_questions("hotpotqa")
    assert str(caught.value) == (
        "HotpotQA (hotpotqa/hotpot_qa) could not be reached on the hub (ConnectionError). "
        "Try again with a connection, or give a file: the authors' JSON (a list of {_id, "
        "question, answer, type}), or a .jsonl, .jsonl.gz, .json, .csv, .tsv or .parquet file "
        "with the columns question and answers."
    )


# --- Addresses of the hub ---


ROWS = [
    {"prompt": "Who wrote Emma?", "gold": {"names": ["Jane Austen", "Austen"]}, "about": "Emma"},
    {"prompt": "Who wrote Dracula?", "gold": {"names": ["Bram Stoker"]}, "about": "Dracula"},
]
COLUMNS = "question=prompt,answers=gold.names,subject=about"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def hub_folder(path: Path, configs: dict[str, dict[str, Sequence[dict]]]) -> Path:
    """A folder as the hub has it: parquet files in data/, and a card that names them."""
    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            file = path / "data" / f"{config}-{split}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
            card += [f"  - split: {split}", f"    path: data/{file.name}"]
    (path / "README.md").write_text("\n".join([*card, "---", ""]))
    return path


@pytest.fixture
def books(tmp_path: Path) -> Path:
    other = [{**ROWS[0], "prompt": "Who wrote Ulysses?", "about": "Ulysses"}]
    return hub_folder(
        tmp_path / "hub" / "books",
        {"default": {"train": other, "test": ROWS}, "small": {"train": ROWS[:1]}},
    )


def test_an_address_is_read_with_its_columns(books: Path) -> None:
    loaded = load_questions(f"hub:{books}:test", columns=COLUMNS)
    assert loaded.name == loaded.title == "books"
    by_text = {q.text: q for q in loaded}
    assert set(by_text) == {"Who wrote Emma?", "Who wrote Dracula?"}
    emma = by_text["Who wrote Emma?"]
    assert (emma.answers, emma.subjects, emma.entity) == (
        ("Jane Austen", "Austen"), ("Emma",), "emma",
    )  # fmt: skip
    assert emma.id.startswith("books:test:")


def test_without_a_split_test_comes_before_train(books: Path) -> None:
    assert len(load_questions(f"hub:{books}", columns=COLUMNS)) == 2
    small = load_questions(f"hub:{books}:small", columns=COLUMNS)
    assert (small.name, len(small)) == ("books-small", 1)
    (only,) = load_questions(f"hub:{books}:default:train", columns=COLUMNS)
    assert only.text == "Who wrote Ulysses?"
    assert only.id.startswith("books-default:train:")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("hub:org/name", ("org/name", None, None)),
        ("hub:org/name:test", ("org/name", None, "test")),
        ("hub:org/name:unfiltered", ("org/name", "unfiltered", None)),
        ("hub:org/name:rc:validation", ("org/name", "rc", "validation")),
    ],
)
def test_what_stands_behind_a_name(address: str, parts: tuple) -> None:
    assert read_address(address) == parts


@pytest.mark.parametrize("address", ["hub:", "hub:name", "hub:a/b:c:d:e", "hub:a/b/c", "hub:a/b:"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UserError, match="is no address of a dataset"):
        load_questions(address)


def test_mistakes_are_one_sentence(books: Path) -> None:
    for data, columns, words in (
        (f"hub:{books}:test", None, r"no column question and no column answers. Columns there: pr"),
        (f"hub:{books}:test", "question=text,answers=gold", "no column text. Columns there: prom"),
        (f"hub:{books}:default:nosplit", COLUMNS, "could not be read from the hub .*nosplit"),
        (f"hub:{books}:noconfig:test", COLUMNS, "could not be read from the hub .*noconfig"),
        ("atlas", "question=a", "without question or answers"),
        ("atlas", "question=a,answers=b,colour=c", r"--columns is .*\['colour'\]"),
    ):
        with pytest.raises(UserError, match=words):
            load_questions(data, columns=columns)


EXPECTED = {"popqa": POPQA, "triviaqa": TRIVIAQA, "hotpotqa": HOTPOTQA, "nq": NQ}


@pytest.mark.parametrize("name", ROWS_OF_THE_HUB)
def test_the_sets_with_a_name_read_the_hubs_rows(name: str, tmp_path: Path) -> None:
    source = DATASETS[name]
    assert source.hub is not None
    config = source.hub.config or "default"
    folder = hub_folder(
        tmp_path / "hub" / name, {config: {source.hub.split: [ROWS_OF_THE_HUB[name]]}}
    )
    (draft,) = from_hub(source, replace(source.hub, path=str(folder)))
    assert draft is not None and draft.question.dataset == name
    if name in EXPECTED:
        assert draft.question == EXPECTED[name]
    else:
        asked = (draft.question.text, draft.question.answers)
        assert asked == ("Who got the prize?", ("Michio Sugeno",))
