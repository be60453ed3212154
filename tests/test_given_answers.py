"""Answers that another program wrote, read by `run --answers` in one pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from kit.plain import plain_logits, plain_states
from kit.rivers import HALF, contents, half_right, main_in, rivers, stored_states
from transformers import AutoModelForCausalLM

from anchorscope.engine.decode import read_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_given


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a model, 64 questions, and an ordinary run on them."""
    place = rivers(tmp_path_factory.mktemp("given"))
    half_right(place)
    main_in(place, *HALF, "--out", "own")
    return place


def rows_of(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "samples.parquet").set_index("id")


def write(place: Path, name: str, rows: list[dict]) -> None:
    (place / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_a_models_own_answers_given_as_tokens_make_the_same_run(place):
    own = rows_of(place / "own")
    tokens = [{"id": id, "token_ids": ids.tolist()} for id, ids in own["token_ids"].items()]
    write(place, "tokens.jsonl", tokens)
    main_in(place, *HALF, "--answers", "tokens.jsonl", "--out", "tokens")
    again = rows_of(place / "tokens")
    assert list(again["verdict"]) == list(own["verdict"]) and not again["off_greedy"].any()
    for name in ("token_ids", "exact_answer"):
        assert all(map(np.array_equal, own[name], again[name]))
    for name in ("log_probs", "entropies"):
        pairs = zip(own[name], again[name], strict=True)
        assert all(np.allclose(a, b, atol=1e-4) for a, b in pairs)
    for name in ("clean", "question-only", "knockout", "neutral"):
        states, others = (stored_states(place / run, name) for run in ("own", "tokens"))
        assert states.keys() == others.keys() and states
        assert all(np.allclose(states[id], others[id], atol=2e-2) for id in states)
    findings = [pd.read_csv(place / run / "tables/findings.csv") for run in ("own", "tokens")]
    assert list(findings[0]["finding"]) == list(findings[1]["finding"])


def test_sampled_answers_of_plain_transformers_are_read_as_it_computes_them(place):
    lm = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    torch.manual_seed(1)
    rows, wanted = [], {}
    for id, row in rows_of(place / "own").iterrows():
        prompt = torch.tensor([row["prompt_ids"].tolist()])
        drawn = lm.generate(
            prompt, do_sample=True, temperature=1.5, top_k=0, max_new_tokens=6, pad_token_id=0
        )
        answer = drawn[0, prompt.shape[1] :]
        with torch.no_grad():
            out = lm(drawn, output_hidden_states=True)
        before = out.logits[0, prompt.shape[1] - 1 : -1].log_softmax(-1)
        log_probs = before.gather(1, answer[:, None])[:, 0]
        off = int((before.argmax(-1) != answer).sum())
        rows.append({"id": id, "token_ids": answer.tolist()})
        wanted[id] = (log_probs.numpy(), off, [h[0] for h in out.hidden_states[1:-1]])
    pd.DataFrame(rows).to_parquet(place / "drawn.parquet")
    verdicts = [{"id": id, "right": number % 2} for number, id in enumerate(wanted)]
    write(place, "verdicts.jsonl", verdicts)
    more = ("--answers", "drawn.parquet", "--verdicts", "verdicts.jsonl", "--out", "drawn")
    main_in(place, *HALF, *more)
    states, seen = stored_states(place / "drawn", "clean"), rows_of(place / "drawn")
    assert states and seen["off_greedy"].sum() > len(seen)
    for id, (log_probs, off, hidden) in wanted.items():
        assert np.allclose(seen.loc[id, "log_probs"], log_probs, atol=1e-4)
        assert seen.loc[id, "off_greedy"] == off
        if id in states:
            at = seen.loc[id, "exact_answer"][-1]
            for layer, own in enumerate(hidden):  # the last block's state is before its norm
                assert np.allclose(states[id][layer], own[at].numpy(), atol=2e-2)


def test_texts_are_tokenised_behind_the_prompt_and_a_killed_run_continues(place):
    own = rows_of(place / "own")
    write(place, "texts.jsonl", [{"id": id, "answer": text} for id, text in own["answer"].items()])
    main_in(place, *HALF, "--answers", "texts.jsonl", "--out", "texts")
    again = rows_of(place / "texts")
    assert list(again["answer"]) == list(own["answer"])
    whole = contents(place / "texts")
    for part in ("states/knockout/00001.safetensors", "answers/00002.parquet"):
        (place / "texts" / part).unlink()
    (place / "texts" / "report.html").unlink()
    main_in(place, *HALF, "--answers", "texts.jsonl", "--out", "texts")
    assert contents(place / "texts") == whole


def test_only_questions_with_an_answer_are_run(place, cli, monkeypatch):
    monkeypatch.chdir(place)
    ids = list(rows_of(place / "own").index)
    write(place, "some.jsonl", [{"id": id, "answer": "the sea"} for id in ids[:40]])
    code, out, error = cli(*HALF, "--answers", "some.jsonl", "--out", "some")
    assert not code or "right" in error  # all answers alike cannot train a probe
    assert "24 without an answer" in out + error


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"id": "half:all:x", "answer": "sea"}, "ids are others"),
        ({"answer": "sea"}, "lacks an id"),
        ({"id": "q"}, "lacks an answer"),
        ({"id": "q", "token_ids": [1.5]}, "no list of token ids"),
        ({"id": "q", "token_ids": "[1, -2]"}, "no list of token ids"),
        ({"id": "q", "token_ids": [10**6]}, "has the token 1000000"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(place, cli, monkeypatch, row, error):
    monkeypatch.chdir(place)
    ids = list(rows_of(place / "own").index)
    rows = [row | {"id": id} for id in ids] if row.get("id") == "q" else [row]
    write(place, "bad.jsonl", rows)
    code, _, seen = cli(*HALF, "--answers", "bad.jsonl", "--out", "bad")
    assert code == 2 and error in seen and "Traceback" not in seen


def test_each_architecture_reads_given_answers_as_stock_attention_does(tiny, monkeypatch):
    """States, log-probabilities, entropies and greedy tokens, also with an empty answer."""
    prompts = [(31, 40, 52, 60, 71), (31, 40, 52, 99), (31, 40, 52, 60, 72, 73)]
    answers = [(80, 81, 82), (), (90, 91, 92, 93, 94)]
    places = [(0, 2), (), (1, 4)]
    monkeypatch.setattr("anchorscope.engine.read._LOGITS", 1)  # one answer's logits at a time
    with Lease(tiny) as lease:
        prefix = read_prefix(lease, prompts[0][:3])
        found = read_given(lease, prefix, prompts, answers, places, extra_position=[3, 3, 3])
    assert found.extra is not None and found.answers[1].log_probs == ()
    for n, (prompt, ids) in enumerate(zip(prompts, answers, strict=True)):
        assert torch.allclose(found.extra[n], plain_states(tiny, [prompt[:4]])[0], atol=1e-5)
        if not ids:
            continue
        (logits,) = plain_logits(tiny, [(*prompt, *ids)])
        spread = logits[len(prompt) - 1 : -1].log_softmax(-1)
        own, one = spread[torch.arange(len(ids)), list(ids)], found.answers[n]
        assert torch.allclose(torch.tensor(one.log_probs), own, atol=1e-4)
        entropies = -(spread.exp() * spread).sum(-1)
        assert torch.allclose(torch.tensor(one.entropies), entropies, atol=1e-4)
        assert one.off_greedy == int((spread.argmax(-1) != torch.tensor(ids)).sum())
        for k, place in enumerate(places[n]):
            (states,) = plain_states(tiny, [(*prompt, *ids[: place + 1])])
            assert torch.allclose(found.states[n][k], states, atol=1e-5)
