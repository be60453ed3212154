"""Rows of one's own from a file to a detector that scores them, through the commands."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kit.plain import plain_states
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.models import load_model
from anchorscope.run_folder.view import RunView

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
                            "--out", home / "run")  # fmt: skip
    assert code == 0, error
    run = RunView.open(home / "run", collected_ok=True)
    assert [s.verdict for s in run.answers[:4]] == ["right", "wrong", "right", "wrong"]
    one = run.answers[1]
    assert one.answer.text[one.answer_span.start : one.answer_span.stop] == "Paris"
    ids = model.tokenizer(rows[1]["prompt"] + " " + rows[1]["answer"])["input_ids"]
    assert [*one.prompt_ids, *one.answer.token_ids] == ids
    from anchorscope.run_folder.states import StateBank

    bank = StateBank(home / "run", [one.id])
    want = plain_states(model, [ids[: one.exact_answer[-1] + 1]])[0]
    for layer in range(1, model.blocks + 1):
        np.testing.assert_allclose(bank.layer("clean", layer)[0], want[layer - 1], atol=2e-3)

    code, _, error = cli("detect", "train", home / "run", "--out", home / "detector",
                            "--method", "combined", "--folds", "3",
                            "--calibration", "isotonic")  # fmt: skip
    assert code == 0, error
    new = home / "new.jsonl"
    new.write_text("".join(json.dumps(row | {"label": None}) + "\n" for row in rows[:3]))
    score = ["detect", "score", home / "detector", new, "--model", home / "model"]
    code, _said, error = cli(*score, "--device", "cpu", "--out", home / "out.jsonl")
    assert code == 0, error
    done = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    assert [row["answer_entity"] for row in done] == CITIES[:3]
    assert all(row["outcome"] in ("right", "wrong", "cannot say") for row in done)
    code, _, error = cli("detect", "score", home / "detector", "--question", "Who?",
                            "--model", home / "model", "--device", "cpu")  # fmt: skip
    assert code != 0 and "trained on given prompts" in error


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "a", "label": 1}, "no prompt"),
        ({"prompt": "p", "question": "q", "answer": "a", "label": 1}, "`question` and `prompt`"),
        ({"prompt": "p", "answer": 5, "label": 1}, "the `answer` '5'"),
        ({"prompt": "p", "answer": "a", "label": "maybe"}, "the `label` 'maybe'"),
        ({"messages": [{"role": "x", "content": "q"}], "answer": "a", "label": 1}, "`role`"),
    ],
)
def test_a_row_that_is_none_is_named(cli, tmp_path, row, words):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(row) + "\n")
    code, _, error = cli("detect", "collect", "--answers", file, "--out", tmp_path / "run")
    assert code != 0 and "Row 1 of log" in error and words in " ".join(error.split())
    assert not (tmp_path / "run").exists()
