"""Evidence that reads a model of one known head in one known block; P(True) by a plain pass."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from kit.planted import (
    BLOCK,
    HEAD,
    made,
    planted_probe,
)

from anchorscope.engine.lease import Lease
from anchorscope.evidence.detectors import p_true, read_p_true, true_or_false_prompt
from anchorscope.evidence.heads import (
    by_other_half,
    choose_questions,
    read_heads,
    top_sets,
)
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.evidence.saliency import read_saliency
from anchorscope.evidence.shards import Shards
from anchorscope.models.prompts import make_prompt
from anchorscope.pathways.effects import delta_p
from anchorscope.run_folder.samples import evidence_name
from anchorscope.run_folder.store import Store


def stored(shards, piece):
    files = [shards.store.file(evidence_name(piece, n)) for n in range(len(shards.samples))]
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def test_the_sweep_finds_the_planted_head(planted):
    samples = planted.samples[0] + planted.samples[1]
    probe = planted_probe(planted.lease.model, samples, layer=4)
    read_heads(planted, {"made": [2, BLOCK]}, {"made": probe}, limit=6)
    table = stored(planted, "heads")
    assert table["id"].nunique() == 6
    counted = table.groupby("id")["set"].value_counts().unstack()
    assert (counted[""] == 8).all() and (counted["block"] == 2).all()
    assert (counted["top4"] == 1).all() and "top8" not in counted  # 8 would be all of them
    table["delta"] = delta_p(np.asarray(table["logit_clean"]), np.asarray(table["logit_knockout"]))
    mean = table.groupby(["set", "block", "head"])["delta"].mean()
    assert mean[""].idxmin() == (BLOCK, HEAD)
    assert mean["", BLOCK, HEAD] < -30
    assert mean[""].drop((BLOCK, HEAD)).abs().max() < 5
    assert mean["block", BLOCK, -1] < -30 and abs(mean["block", 2, -1]) < 5
    assert mean["top4", 0, -4] < -30
    assert (table["layer"] == 4).all() and (table["dataset"] == "made").all()


def test_top_sets_are_ranked_on_the_questions_given():
    rows = []
    for id, strong in (("a", 1), ("b", 2)):
        for head in range(3):
            knocked = 0.5 if head == strong else 2.0
            named = {"id": id, "block": 7, "head": head, "set": ""}
            rows.append({**named, "logit_clean": 2.0, "logit_knockout": knocked})
        rows.append({**named, "head": -1, "set": "block", "logit_clean": 2.0, "logit_knockout": -9})
    scores = pd.DataFrame(rows)
    (top,) = top_sets(scores, ["a"], sizes=(1, 3))
    assert (top.heads, top.set, top.head, top.block) == (((7, 1),), "top1", -1, 0)
    (top,) = top_sets(scores, ["b"], sizes=(1,))
    assert top.heads == ((7, 2),)
    (top,) = top_sets(scores, ["a", "b"], sizes=(2,))
    assert set(top.heads) == {(7, 1), (7, 2)}


def test_the_top_heads_of_a_question_are_ranked_on_the_other_half():
    """Of five heads one is harmless on each half: the top four leave that one out."""
    rows = [
        {"id": id, "block": 2, "head": head, "set": "", "logit_clean": -1.0,
         "logit_knockout": -1.0 if head == harmless else 1.0}
        for id, harmless in (("a", 0), ("b", 4), ("c", 0), ("d", 4))
        for head in range(5)
    ]  # fmt: skip
    sets = by_other_half(pd.DataFrame(rows), ["a", "b", "c", "d"])
    heads = {id: {head for _, head in own[0].heads} for id, own in sets.items()}
    assert heads["a"] == heads["c"] == {0, 1, 2, 3}
    assert heads["b"] == heads["d"] == {1, 2, 3, 4}
    assert by_other_half(pd.DataFrame(rows), ["a"]) == {}


def test_questions_are_chosen_by_seed_and_id_alone():
    ids = [f"made:test:{n}" for n in range(40)]
    assert choose_questions(ids, limit=9, seed=1) == choose_questions(ids[::-1], limit=9, seed=1)
    assert choose_questions(ids, limit=9, seed=1) == choose_questions(ids, limit=20, seed=1)[:9]
    assert set(choose_questions(ids, limit=9, seed=1)) != set(
        choose_questions(ids, limit=9, seed=2)
    )


def test_saliency_is_stored_in_long_rows_and_points_at_the_planted_block(planted):
    samples = planted.samples[0] + planted.samples[1]
    probe = planted_probe(planted.lease.model, samples[:-1], layer=4)  # the last is in no fold
    read_saliency(planted, {"made": probe})
    table = stored(planted, "saliency")
    assert len(table) == 7 * 2 * 2 * 4
    assert not table.duplicated(["id", "loss", "source", "layer"]).any()
    assert table["saliency"].notna().all()
    mean = table.groupby(["loss", "source", "layer"])["saliency"].mean()
    for loss in ("probe", "lm"):
        assert mean[loss, "exact"].idxmax() == BLOCK
        assert (mean[loss, "question"] >= mean[loss, "exact"]).all()


def test_a_resumed_run_reads_only_the_shard_whose_evidence_is_missing(planted, monkeypatch):
    samples, read = planted.samples[0] + planted.samples[1], []
    probe = planted_probe(planted.lease.model, samples, layer=4)
    read_saliency(planted, {"made": probe})
    files = [planted.store.file(evidence_name("saliency", n)) for n in range(2)]
    before = files[1].read_bytes()
    files[1].unlink()
    own = planted.lease.run
    monkeypatch.setattr(
        planted.lease, "run", lambda ids, *a, **k: read.append(1) or own(ids, *a, **k)
    )
    store = Store.open(planted.store.path, {"a": 1})
    again = Shards(planted.lease, store, planted.samples, seed=0)
    read_saliency(again, {"made": probe})
    assert len(read) == 3  # the prefix, the trunk of one shard, its answers
    assert files[1].read_bytes() == before
    read_saliency(again, {"made": probe})
    assert len(read) == 3


# P(True)


def first(model, word: str) -> int:
    return model.tokenizer(word, add_special_tokens=False)["input_ids"][0]


def test_p_true_is_the_share_of_true_in_a_plain_forward_pass(tiny_llama, tmp_path):
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


def test_p_true_is_stored_shard_by_shard_and_not_asked_twice(tiny_llama, tmp_path):
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
