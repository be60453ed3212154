"""P(True): what a plain forward pass gives the two words."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from kit.planted import made

from anchorscope.engine.lease import Lease
from anchorscope.evidence.detectors import p_true, read_p_true, true_or_false_prompt
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.evidence.shards import Shards
from anchorscope.models.prompts import make_prompt
from anchorscope.run_folder.store import Store


def first(model, word: str) -> int:
    return model.tokenizer(word, add_special_tokens=False)["input_ids"][0]


def test_it_is_the_share_of_true_in_a_plain_forward_pass(tiny_llama, tmp_path):
    model = tiny_llama
    samples = [made(model, n, subject) for n, subject in enumerate(["tea", "ale", "long island"])]
    with Lease(model) as lease:
        shards = Shards(lease, Store(tmp_path), [samples], seed=0)
        found = p_true(shards, samples, style="text")
    for sample in samples:
        ids = make_prompt(model, true_or_false_prompt(sample), shots=(), style="text").ids
        with torch.no_grad():
            chance = model.lm(torch.tensor([ids])).logits[0, -1].softmax(-1)
        words = ({first(model, w) for w in (word, f" {word}", word.lower(), f" {word.lower()}")}
                 for word in ("True", "False"))  # fmt: skip
        yes, no = (float(chance[sorted(tokens)].sum()) for tokens in words)
        assert found[sample.id] == pytest.approx(yes / (yes + no), rel=1e-4)
    assert len(set(found.values())) == 3


def test_it_is_stored_shard_by_shard_and_not_asked_twice(tiny_llama, tmp_path):
    samples = [made(tiny_llama, n, subject) for n, subject in enumerate(["tea", "ale"])]
    with Lease(tiny_llama) as lease:
        shards = Shards(lease, Store(tmp_path), [[samples[0]], [samples[1]]], seed=0)
        prompts = PromptMaker(model=tiny_llama, style="text", shots={}, seed=0)
        read_p_true(shards, prompts)
        files = sorted((tmp_path / "evidence" / "ptrue").glob("*.parquet"))
        table = pd.concat(map(pd.read_parquet, files))
        assert list(table["id"]) == [s.id for s in samples] and table["p_true"].between(0, 1).all()
        before = [file.stat().st_mtime_ns for file in files]
        read_p_true(shards, prompts)
    assert [file.stat().st_mtime_ns for file in files] == before
