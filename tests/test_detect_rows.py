"""Files of questions and answers: read, learnt from, scored and written."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
from kit.plain import plain_states
from kit.tiny import tiny_lm, tiny_tokenizer
from test_detect_score import QUESTIONS, make

from anchorscope.models import load_model
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.view import RunView

ROWS = [
    {"id": 7, "question": QUESTIONS[0], "answer": "Rome"},
    {"id": 8, "question": QUESTIONS[1], "answer": None},
    {"id": 9, "question": QUESTIONS[2], "answer": " Kanpur "},
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A tiny model and a detector for it, both on disk; the detector and the model beside."""
    home = tmp_path_factory.mktemp("deployed")
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    model.lm.save_pretrained(home / "model")
    model.tokenizer.save_pretrained(home / "model")
    detector = make(model)
    detector.save(home / "detector")
    return {"model": home / "model", "detector": home / "detector", "loaded": (detector, model)}


@pytest.fixture
def score(cli, places):
    def run(*words):
        model = ["--model", places["model"], "--device", "cpu"]
        return cli("detect", "score", places["detector"], *words, *model)

    return run


def write(file, rows):
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".csv":
        pd.DataFrame(rows).to_csv(file, index=False)
    else:
        pd.DataFrame(rows).to_parquet(file)
    return file


def read(file) -> list[dict]:
    """The rows of a file by other means than ours, missing values as None."""
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if file.suffix == ".csv":
        with file.open(encoding="utf-8", newline="") as opened:
            return [{k: v or None for k, v in row.items()} for row in csv.DictReader(opened)]
    table = pd.read_parquet(file)
    return table.astype(object).where(table.notna(), None).to_dict("records")


@pytest.mark.parametrize(
    ("start", "end"), [(".csv", ".parquet"), (".parquet", ".jsonl"), (".jsonl", ".csv")]
)
def test_each_kind_of_file_is_read_and_written(places, score, tmp_path, start, end):
    file, out = write(tmp_path / f"in{start}", ROWS), tmp_path / "not" / "there" / f"out{end}"
    code, printed, error = score(file, "--out", out)
    assert code == 0, error
    detector, model = places["loaded"]
    want = detector.score(
        model, [row["question"] for row in ROWS], answer=[row["answer"] for row in ROWS]
    )
    done = read(out)
    assert [int(row["id"]) for row in done] == [7, 8, 9]
    for row, own, one in zip(done, ROWS, want, strict=True):
        assert row["answer"] == (own["answer"] or one.answer)
        assert row["question"] == one.question
        if one.reason:
            assert row["probability"] is None and row["reason"] == one.reason
        else:
            assert float(row["probability"]) == pytest.approx(one.probability, abs=2e-4)
            assert str(row["flagged"]) == str(one.flagged)
    assert f"{sum(one.flagged for one in want)} of 3 flagged" in printed
    assert sorted(p.name for p in out.parent.iterdir()) == [out.name]


BAD = {
    "a number": (".jsonl", b'{"question": 5}\n', "Given: the `question` '5'"),
    "no question": (".csv", b"questions\nWho?\n", "in.csv cannot be read. Given: no prompt"),
    "a number as the answer": (".jsonl", b'{"question": "a", "answer": 5}', "the `answer` '5'."),
    "not UTF-8": (".jsonl", '{"question": "Où?"}'.encode("latin-1"), "could not be read as"),
    "no JSON": (".jsonl", b"Who?\n", "row 1 is no JSON"),
    "of no known kind": (".txt", b"Who?\n", "Unknown kind of file 'in.txt'"),
    "a field of ours": (
        ".jsonl", b'{"question": "a", "score": 3}', "fields of their own called score. Rename them"
    ),
    "empty": (".csv", b"question\n", "in.csv has no rows"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_in_a_file_is_one_sentence(score, tmp_path, mistake):
    end, content, printed = BAD[mistake]
    (tmp_path / f"in{end}").write_bytes(content)
    code, _, error = score(tmp_path / f"in{end}", "--out", tmp_path / "out.jsonl")
    assert code == 2 and printed in error and "Traceback" not in error
    assert not (tmp_path / "out.jsonl").exists()


def test_an_output_that_cannot_be_written_is_refused_before_scoring(score, tmp_path):
    file = write(tmp_path / "in.jsonl", [{"question": "a", "n": 1}, {"question": "b", "n": "x"}])
    (tmp_path / "file").write_text("")
    for out, printed in (
        (tmp_path / "out.xlsx", "Unknown kind of file for --out 'out.xlsx'"),
        (tmp_path / "file" / "out.jsonl", "is a file"),
        (tmp_path / "out.parquet", "The rows cannot be written as out.parquet"),
    ):
        code, printed, error = score(file, "--out", out)
        assert code == 2 and printed in error and "scores" not in error + printed
        assert not out.exists()


def test_a_rows_own_fields_are_kept_beside_new_ones(score, tmp_path):
    file = write(tmp_path / "in.jsonl", [{"question": "Who?", "mark": 3, "note": float("nan")}])
    code, printed, error = score(file)
    assert code == 0, error
    row = json.loads(printed)
    assert row["mark"] == 3 and row["note"] is None
    assert {"score", "probability", "answer"} <= set(row)


CITIES = ["Rome", "Paris", "Lyon", "Oslo", "Kanpur", "India", "Hamlet", "Shakespeare"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    home = tmp_path_factory.mktemp("own")
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    model.lm.save_pretrained(home / "model")
    model.tokenizer.save_pretrained(home / "model")
    rows = [
        {"prompt": f"Notes {n}.\nWhere is it?", "answer": f"It is {CITIES[n % 8]}.",
         "label": ("right", "wrong", 1, 0.2)[n % 4], "entity": f"thing {n}"}
        for n in range(300)
    ]  # fmt: skip
    (home / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home, model, rows


def test_own_rows_are_read_in_one_pass_learnt_from_and_scored(cli, place):
    home, model, rows = place
    where = ["--model", home / "model", "--device", "cpu", "--dtype", "float32"]
    code, _, error = cli("detect", "collect", "--answers", home / "log.jsonl", *where,
                         "--samples", 2, "--out", home / "run")  # fmt: skip
    assert code == 0, error
    run = RunView.open(home / "run", collected_ok=True)
    assert [s.verdict for s in run.answers[:4]] == ["right", "wrong", "right", "wrong"]
    one = run.answers[1]
    assert one.answer.text[one.answer_span.start : one.answer_span.stop] == "Paris"
    ids = model.tokenizer(rows[1]["prompt"] + " " + rows[1]["answer"])["input_ids"]
    assert [*one.prompt_ids, *one.answer.token_ids] == ids

    bank = StateBank(home / "run", [one.id])
    want = plain_states(model, [ids[: one.exact_answer[-1] + 1]])[0]
    for layer in range(1, model.blocks + 1):
        np.testing.assert_allclose(bank.layer("clean", layer)[0], want[layer - 1], atol=2e-3)

    learn = ["detect", "train", home / "run", "--out", home / "detector", "--folds", 3]
    code, _, error = cli(*learn, "--method", "combined", "--calibration", "isotonic")
    assert code == 0, error
    new = home / "new.jsonl"
    new.write_text("".join(json.dumps(row | {"label": None}) + "\n" for row in rows[:3]))
    score = ["detect", "score", home / "detector", new, "--model", home / "model"]
    code, _, error = cli(*score, "--device", "cpu", "--out", home / "out.jsonl")
    assert code == 0, error
    done = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    assert [row["answer_entity"] for row in done] == CITIES[:3]
    assert all(row["outcome"] in ("right", "wrong", "cannot say") for row in done)
    draws = ["detect", "train", home / "run", "--out", home / "drawing", "--folds", 3]
    code, printed, error = cli(*draws, "--method", "self-check")
    assert code == 0, error
    assert "Draws 2 answers beside each that it scores" in " ".join(printed.split())
    score[2] = home / "drawing"
    code, _, error = cli(*score, "--device", "cpu", "--out", home / "drawn.jsonl")
    assert code == 0, error
    drawn = [json.loads(line) for line in (home / "drawn.jsonl").read_text().splitlines()]
    assert all(row["score"] in (0, 0.5, 1) for row in drawn)
    code, _, error = cli("detect", "score", home / "detector", "--question", "Who?",
                            "--model", home / "model", "--device", "cpu")  # fmt: skip
    assert code != 0 and "trained on given prompts" in error


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"prompt": "p", "question": "q", "answer": "a", "label": 1},
            "the `question` 'q' and the `prompt`",
        ),
        ({"prompt": "p", "answer": "a", "label": "maybe"}, "the `label` 'maybe'"),
        ({"messages": [{"role": "x", "content": "q"}], "answer": "a", "label": 1}, "`role`"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(cli, tmp_path, row, words):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(row) + "\n")
    code, _, error = cli("detect", "collect", "--answers", file, "--out", tmp_path / "run")
    assert code != 0 and "Row 1 of log" in error and words in " ".join(error.split())
    assert not (tmp_path / "run").exists()
