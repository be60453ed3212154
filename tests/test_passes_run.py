"""A run of a tiny model folder: controls, retest and the model's own output, by a plain path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from kit.plain import plain_logits, plain_states
from kit.rivers import stored_states

from anchorscope.answers.prompted import prompts_of, retest_prompts
from anchorscope.datasets.source import GENERAL_AGAIN
from anchorscope.evidence.stored import associated_table, output_table
from anchorscope.models import Model, load_model
from anchorscope.records import Question, QuestionSet
from anchorscope.run_folder.table_columns import OUTPUT, OUTPUT_ROWS
from anchorscope.spans.question import find_spans

PASSES = ("knockout", "neutral", "content", "question", "answer-only", "retest", "retest-knockout")


@pytest.fixture(scope="module")
def place(finished_place) -> Path:
    """Sixty-four rivers; every fourth question has nothing in it but subject and property."""
    return finished_place


@pytest.fixture(scope="module")
def model(place: Path) -> Model:
    return load_model(place / "model", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def samples(place: Path) -> pd.DataFrame:
    frame = pd.read_parquet(place / "run" / "samples.parquet").set_index("id")
    return frame.loc[frame["exact_answer"].map(len) > 0]


def read_outputs(run: Path, name: str) -> pd.DataFrame:
    files = sorted((run / "outputs" / name).glob("*.parquet"))
    return pd.concat([pd.read_parquet(file) for file in files]).set_index("id")


def written(sample: pd.Series) -> list[int]:
    """The answer's tokens up to the probe position."""
    count = sample["exact_answer"][-1] + 1 - len(sample["prompt_ids"])
    return list(sample["token_ids"][:count])


def cutting(keys, start: int):
    """Keys are cut for the question's own turn, which begins at `start`."""
    return lambda row, block, query, key: key in keys and query not in keys and query >= start


def plain_output(logits: torch.Tensor, ids: list[int], answer_at: int) -> list[float]:
    before = logits[answer_at - 1 : len(ids) - 1].log_softmax(dim=-1)
    own = before[torch.arange(len(before)), ids[answer_at:]]
    return [own[0].item(), own.mean().item(), float((before[0] > own[0]).sum()) + 1]


def test_every_pass_has_its_states_and_its_output(place, samples):
    run = place / "run"
    for name in PASSES:
        states, outputs = stored_states(run, name), read_outputs(run, name)
        assert list(states) == list(outputs.index) and set(states) <= set(samples.index)
        if name != "content":
            assert len(states) == len(samples)


def test_a_question_without_other_content_words_has_no_such_state(place, samples):
    """Sixteen of the questions ask for nothing but the river's end."""
    found = stored_states(place / "run", "content")
    for id, sample in samples.iterrows():
        others = set(sample["content_tokens"]) - set(sample["exact_question"])
        assert (id in found) == bool(others) == (" the river " in sample["question"])
    assert 0 < len(samples) - len(found) <= 16
    table = pd.read_csv(place / "run" / "tables" / "controls.csv")
    assert set(table.loc[table["intervention"] == "content", "n"]) == {
        sum(samples["verdict"].ne("abstain") & samples.index.isin(list(found)))
    }


def test_content_cuts_the_river_and_nothing_else(place, samples, model):
    """The one word beside subject and property."""
    states = stored_states(place / "run", "content")
    for id in list(states)[:3]:
        sample = samples.loc[id]
        prompt = list(sample["prompt_ids"])
        others = sorted(set(sample["content_tokens"]) - set(sample["exact_question"]))
        assert model.tokenizer.decode([prompt[at] for at in others]).strip() == "river"
        ids = prompt + written(sample)
        (plain,) = plain_states(model, [ids], cutting(others, sample["question_tokens"][0]))
        np.testing.assert_allclose(states[id], plain.numpy(), rtol=1e-3, atol=3e-3)  # halves


def retest_prompt(question: str) -> str:
    """Other worked examples in another order, and other words around them."""
    shots = "".join(f"Question: {s.question}\nAnswer: {s.answer}\n\n" for s in GENERAL_AGAIN)
    return f"{shots}Question: {question}\nAnswer:"


def test_retest_states_are_those_of_a_plain_pass_behind_the_other_prompt(place, samples, model):
    run = place / "run"
    clean, knocked = stored_states(run, "retest"), stored_states(run, "retest-knockout")
    outputs = read_outputs(run, "retest")
    for id in list(clean)[:3]:
        sample = samples.loc[id]
        text = retest_prompt(sample["question"])
        coded = model.tokenizer(text, return_offsets_mapping=True)
        prompt, start = coded["input_ids"], text.rindex(sample["question"])
        ids = prompt + written(sample)
        (plain,) = plain_states(model, [ids])
        np.testing.assert_allclose(clean[id], plain.numpy(), rtol=1e-3, atol=3e-3)
        (logits,) = plain_logits(model, [ids])
        assert outputs.loc[id].tolist() == pytest.approx(
            plain_output(logits, ids, len(prompt)), abs=1e-4
        )
        spans = [
            (start + a, start + b)
            for a, b in zip(sample["span_starts"], sample["span_stops"], strict=True)
        ]
        exact = [
            at
            for at, (a, b) in enumerate(coded["offset_mapping"])
            if any(a < stop and first < b for first, stop in spans)
        ]
        assert len(exact) == len(sample["exact_question"])
        first = next(at for at, (a, _) in enumerate(coded["offset_mapping"]) if a >= start)
        (plain,) = plain_states(model, [ids], cutting(set(exact), first))
        np.testing.assert_allclose(knocked[id], plain.numpy(), rtol=1e-3, atol=3e-3)


def test_output_csv_holds_the_change_of_the_answers_own_probability(place, samples):
    run = place / "run"
    table = pd.read_csv(run / "tables" / "output.csv")
    assert list(table) == list(OUTPUT)
    assert list(table["pass"].unique()) == list(PASSES)
    assert set(table["pathway"]) == {"Q", "A", "all"}
    usable = samples.loc[samples["verdict"] != "abstain"]
    after = read_outputs(run, "knockout").loc[usable.index]
    before = [np.mean(s["log_probs"][: len(written(s))]) for _, s in usable.iterrows()]
    (row,) = table.query(
        "`pass` == 'knockout' and pathway == 'all' and predicted == 'all'"
    ).to_dict("records")
    assert row["n"] == len(usable)
    assert row["delta_log_p"] == pytest.approx((after["log_p"] - before).mean(), abs=1e-5)
    assert row["rank"] == after["rank"].median()
    assert row["delta_log_p_low"] <= row["delta_log_p"] <= row["delta_log_p_high"]
    parts = table.loc[(table["predicted"] == "all") & (table["pass"] == "knockout")]
    counts = parts.set_index("pathway")["n"]
    assert counts["Q"] + counts["A"] == counts["all"]
    associated = pd.read_csv(run / "tables" / "associated.csv")
    assert set(associated["verdict"]) == {"right", "wrong"}


def test_at_most_five_hundred_questions_are_read_again_whatever_their_order(model):
    questions = [
        Question(id=f"d:{n}", dataset="d", text=f"Where is lake {n}?", answers=("a",),
                 subjects=(f"lake {n}",))
        for n in range(520)
    ]  # fmt: skip

    def chosen(some: list[Question]) -> set[str]:
        sets = QuestionSet(name="d", title="D", questions=tuple(some), shots=())
        spans = find_spans(some, finder="auto")
        first = prompts_of(model, sets, spans, style="text", shots=0)
        again = retest_prompts(model, sets, first, style="text", shots=0)
        return {prompt.question.id for prompt in again}

    assert len(chosen(questions)) == 500
    assert chosen(questions) == chosen(questions[::-1])


def test_output_tables_of_made_up_frames():
    """Two of four answers lose their first rank; the retest's cut is held against the retest."""
    rows = [
        (id, name, first, mean, rank)
        for id, cut in (("a", -3.0), ("b", -1.0), ("c", 0.0), ("d", 0.0))
        for name, first, mean, rank in (
            ("clean", -1.0, -0.5, 1), ("knockout", -1.0 + cut, -0.5 + cut / 2, 1 - 2 * cut),
            ("retest", -2.0, -1.0, 1), ("retest-knockout", -2.0 + cut, -1.0 + cut, 1),
        )
    ]  # fmt: skip
    outputs = pd.DataFrame(rows, columns=list(OUTPUT_ROWS))
    groups = pd.DataFrame({"id": list("abcd"), "pathway": ["Q", "Q", "A", None],
                           "prediction": [0, 1, 1, 1], "z": [1, 1, 0, 0],
                           "entity": list("wxyz")})  # fmt: skip
    table = output_table(outputs, groups, model="m", dataset="d", layer=3)
    found = table.set_index(["pass", "pathway", "predicted"])
    q = found.loc[("knockout", "Q", "all")]
    assert (q["delta_log_p"], q["delta_log_p_first"], q["rank"], q["n"]) == (-1.0, -2.0, 5.0, 2)
    assert found.loc[("knockout", "all", "all"), "n"] == 3  # "d" has no pathway
    assert found.loc[("knockout", "Q", "wrong"), "delta_log_p_first"] == -1.0
    assert found.loc[("retest-knockout", "Q", "all"), "delta_log_p"] == -2.0
    assert found.loc[("retest", "A", "all"), "delta_log_p"] == -0.5
    assert found.loc[("knockout", "A", "right"), "n"] == 0
    shares = associated_table(outputs, groups, model="m", dataset="d").set_index(
        ["verdict", "pathway"]
    )
    assert shares.loc[("wrong", "Q"), "associated"] == 1.0
    assert shares.loc[("right", "A"), "associated"] == 0.0
