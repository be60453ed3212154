"""Any dataset of the hub by its address, from folders that look like the hub's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from test_datasets_sources import (
    HOTPOTQA,
    HOTPOTQA_ROW,
    NQ,
    NQ_ROW,
    POPQA,
    POPQA_ROW,
    TRIVIAQA,
    TRIVIAQA_ROW,
)

from anchorscope.datasets import DATASETS, load_questions
from anchorscope.datasets.columns import read_columns
from anchorscope.datasets.hub import from_hub, read_address
from anchorscope.errors import UserError

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


def test_columns_that_are_ours_need_no_names(tmp_path: Path) -> None:
    rows = [{"id": 7, "question": "Who wrote Emma?", "answers": ["Jane Austen"]}]
    folder = hub_folder(tmp_path / "hub" / "own", {"default": {"test": rows}})
    (question,) = load_questions(f"hub:{folder}")
    assert (question.id, question.answers) == ("own:test:7", ("Jane Austen",))


def test_the_same_columns_serve_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("Problem,Gold\nWho wrote Emma?,Jane Austen | Austen\n")
    (question,) = load_questions(file, columns="question=Problem,answers=Gold")
    assert (question.dataset, question.answers) == ("mine", ("Jane Austen", "Austen"))


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


def test_columns_are_read_by_their_path() -> None:
    columns = read_columns(" question = prompt , answers=gold.names ")
    assert columns is not None
    assert columns.needed == ("prompt", "gold")
    assert columns.normal(ROWS[1]) == {"question": "Who wrote Dracula?", "answers": ["Bram Stoker"]}


ASKED, GOLD = "Who got the prize?", "Michio Sugeno"
READY = {
    "simpleqa": {"metadata": "{'topic': 'x'}", "problem": ASKED, "answer": GOLD},
    "simpleqa-verified": {
        "original_index": 5, "problem": ASKED, "answer": GOLD, "topic": "Science", "urls": "u",
    },
    "webquestions": {"url": "u", "question": ASKED, "answers": [GOLD]},
    "sciq": {"question": ASKED, "distractor1": "a", "correct_answer": GOLD, "support": "long"},
}  # fmt: skip
FIRST_FOUR = {
    "popqa": (POPQA_ROW, POPQA),
    "triviaqa": (TRIVIAQA_ROW, TRIVIAQA),
    "hotpotqa": (HOTPOTQA_ROW, HOTPOTQA),
    "nq": (NQ_ROW, NQ),
}


@pytest.mark.parametrize("name", [*FIRST_FOUR, *READY])
def test_the_sets_with_a_name_read_the_hubs_rows(name: str, tmp_path: Path) -> None:
    source = DATASETS[name]
    assert source.hub is not None
    row, expected = FIRST_FOUR.get(name, (READY.get(name), None))
    config = source.hub.config or "default"
    folder = hub_folder(tmp_path / "hub" / name, {config: {source.hub.split: [row]}})
    (draft,) = from_hub(source, replace(source.hub, path=str(folder)))
    assert draft is not None and draft.question.dataset == name
    if expected is not None:
        assert draft.question == expected
    else:
        assert (draft.question.text, draft.question.answers) == (ASKED, (GOLD,))


def test_a_file_of_the_hubs_rows_is_known_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "simpleqa_test.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([READY["simpleqa"]]), file)
    loaded = load_questions(file)
    assert (loaded.name, loaded.title) == ("simpleqa", "SimpleQA")
    assert loaded.questions[0].answers == ("Michio Sugeno",)
