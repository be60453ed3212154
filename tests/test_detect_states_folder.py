"""Detectors trained on states that another program wrote: `detect collect --answers --states`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from kit.rivers import anchorscope_in, finish, main_in, river_rows, rivers, stored_states
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

COMMAND = ("detect", "collect", "--answers", "log.jsonl", "--model", "model", "--dtype", "float32")
COMMAND += ("--device", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model, 96 labelled rows, and the states of their tokens by plain transformers.

    The files have vLLM's layout, in no order: all of an answer's tokens, or all but the last. Every
    fourth answer is drawn, so that its tokens are not those that the tokenizer would choose.
    """
    place = rivers(tmp_path_factory.mktemp("folder"))
    lm = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    kept = []
    lm.model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0][0]))
    torch.manual_seed(3)
    rows = []
    (place / "states").mkdir()
    for number, row in enumerate(river_rows(96)):
        prompt = f"Q: {row['question']}\nA:"
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        answer = f"{row['id'].title()} Bay" if number % 3 else f"In the Bay of {row['id']}."
        whole = tokenizer(f"{prompt} {answer}", return_tensors="pt").input_ids
        if number % 4 == 0:
            whole = lm.generate(ids, do_sample=True, top_k=0, max_new_tokens=6, pad_token_id=0)
            answer = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
        fed = whole[:, :-1] if number % 3 == 0 and number % 4 else whole
        with torch.no_grad():
            out = lm(fed, output_hidden_states=True).hidden_states
        states = torch.stack([*(h[0] for h in out[1:-1]), kept[-1]], dim=1).contiguous()
        name = f"{(number * 37) % 101}-{number:x}.safetensors"
        save_file({"token_ids": fed[0], "hidden_states": states}, place / "states" / name)
        rows.append({"prompt": prompt, "answer": answer, "label": number % 2})
    (place / "log.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return place


def test_each_row_has_the_states_of_its_own_tokens(place):
    main_in(place, *COMMAND, "--out", "own")
    printed = finish(anchorscope_in(place, *COMMAND, "--states", "states", "--out", "theirs"))
    own, theirs = (stored_states(place / name, "clean") for name in ("own", "theirs"))
    samples = pd.read_parquet(place / "theirs" / "samples.parquet").set_index("id")
    assert printed.count("no file has its tokens and states") == 96 - len(samples)
    assert len(theirs) > 80
    alike = 0
    for id, states in theirs.items():
        number = int(id.rsplit(":", 1)[1])
        (file,) = (place / "states").glob(f"*-{number:x}.safetensors")
        written = load_file(file)["hidden_states"][samples.loc[id, "exact_answer"][-1]]
        assert np.allclose(states, written.numpy(), atol=1e-2), id
        if number % 4:  # the tokenizer's own tokens: as a pass of our engine reads them
            alike += 1
            assert np.allclose(states, own[id], atol=1e-2), id
    assert alike > 60


def test_a_probe_learns_from_them_and_what_needs_log_probabilities_is_refused(place, cli):
    folder = place / "theirs"
    code, _, error = cli("detect", "train", folder, "--folds", "3", "--out", place / "detector")
    assert code == 0, error
    about = json.loads((place / "detector" / "detector.json").read_text())
    assert about["name"] == "probe"
    code, _, error = cli("detect", "train", folder, "--method", "combined", "--out", place / "no")
    assert code == 2 and "how likely the tokens were is not known" in error


def test_mistakes_are_sentences(place, cli, monkeypatch):
    monkeypatch.chdir(place)
    code, _, error = cli(*COMMAND[:2], "--states", "states", "--model", "model", "--out", "x")
    assert code == 2 and "give --answers as well" in error
    code, _, error = cli(*COMMAND, "--states", "model", "--out", "y")
    assert code == 2 and "Traceback" not in error
    (place / "few").mkdir()
    file = sorted((place / "states").iterdir())[0]
    tensors = load_file(file)
    tensors["hidden_states"] = tensors["hidden_states"][:, 1:].contiguous()
    save_file(tensors, place / "few" / file.name)
    code, _, error = cli(*COMMAND, "--states", "few", "--out", "z")
    assert code == 2 and "Write all of them" in error and "Traceback" not in error
