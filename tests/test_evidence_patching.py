"""Donors, patched prompts, and the states that are read from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from kit.plain import plain_states
from kit.planted import (
    SHOTS,
    by_kind,
    known,
    made,
    planted_probe,
)

from anchorscope.engine.batches import Budget
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.evidence.patching import (
    choose_donors,
    other_tokens,
    patches,
    read_patched,
    subject_text,
    written,
)
from anchorscope.evidence.pieces import PromptMaker
from anchorscope.evidence.shards import prefix_of, read_ends
from anchorscope.pathways.effects import flips
from anchorscope.run_folder.states import StateBank


def asking(model, **changes) -> PromptMaker:
    given = {"style": "text", "shots": {"made": SHOTS, "rest": SHOTS}, "seed": 0} | changes
    return PromptMaker(model=model, **given)


def test_without_a_donor_nothing_is_patched(tiny_llama):
    alone = made(tiny_llama, 0, "tea")
    donors = choose_donors([alone], seed=0)
    assert [d.donor for d in donors] == ["", "", ""]
    sequences, table = patches(asking(tiny_llama), [alone], donors, {alone.id: alone})
    assert not sequences["patch-matched"] and not sequences["patch-other"]
    assert list(sequences["patch-self"]) == [alone.id]
    assert table["donor"].tolist() == ["", "", ""] and not table["resized"].any()


def test_a_patched_question_is_the_donors_subject_in_the_samples_words(tiny_llama):
    samples = known(tiny_llama)
    donors = choose_donors(samples, seed=0)
    pool = {sample.id: sample for sample in samples}
    sequences, table = patches(asking(tiny_llama), samples, donors, pool)
    decode = tiny_llama.tokenizer.decode
    for donor in donors[:2]:
        sample = pool[donor.id]
        subject = subject_text(pool[donor.donor])
        text = decode(sequences[f"patch-{donor.kind}"][donor.id])
        assert text.endswith(f"Q: what is {subject} for?\nA:{sample.answer.text}")
        assert text.startswith(decode(sample.prompt_ids[:20]))
    sizes = {s.id: len(subject_text(s)) for s in samples}
    for row in table[table["kind"] != "other"].to_dict("records"):
        assert row["resized"] == (sizes[row["id"]] != sizes[row["donor"]])


def test_all_spans_are_patched_where_the_donor_has_as_many(tiny_llama):
    """A donor of two spans is matched before a nearer one of one span."""
    sample = made(tiny_llama, 0, "tea", text="what {} is hot?", spans=("hot",), relation="r")
    near = made(tiny_llama, 1, "ale", relation="r")
    two = made(tiny_llama, 2, "old gin", text="which {} is cold?", spans=("cold",), relation="r")
    pool = {s.id: s for s in (sample, near, two)}
    donors = choose_donors(list(pool.values()), seed=0)
    assert by_kind(donors, "matched")[sample.id].donor == two.id
    sequences, table = patches(asking(tiny_llama), [sample], donors, pool)
    text = tiny_llama.tokenizer.decode(sequences["patch-matched"][sample.id])
    assert "Q: what old gin is cold?" in text
    assert table.set_index("kind").loc["matched", "whole"]
    assert sequences["patch-self"][sample.id] == sample.prompt_ids + written(sample)
    _, alone = patches(asking(tiny_llama), [near], donors, pool)
    assert not alone.set_index("kind").loc["matched", "whole"]


def test_a_self_patch_gives_the_same_tokens_and_the_clean_states(tiny_llama):
    samples = known(tiny_llama)
    donors = choose_donors(samples, seed=0)
    sequences, _ = patches(asking(tiny_llama), samples, donors, {s.id: s for s in samples})
    own = sequences["patch-self"]
    assert own == {s.id: s.prompt_ids + s.answer.token_ids for s in samples}
    with Lease(tiny_llama) as lease:
        prefix = prefix_of(lease, samples)
        ours = read_ends(lease, prefix, own, budget=Budget.of(lease.model))
    clean = plain_states(tiny_llama, list(own.values()))
    ours = torch.tensor(np.stack([ours[id] for id in own])).float()
    assert ((ours - clean).abs().amax() / clean.abs().amax()) < 1e-3  # stored in half precision


def test_other_prompts_than_the_runs_are_refused(tiny_llama):
    samples = known(tiny_llama)
    donors = choose_donors(samples, seed=0)
    wrong = asking(tiny_llama, shots={"made": SHOTS[:1]})
    with pytest.raises(UserError, match="made again has other tokens"):
        patches(wrong, samples, donors, {s.id: s for s in samples})


def test_the_control_replaces_as_many_tokens_outside_the_exact_ones(tiny_llama):
    sample, donor = made(tiny_llama, 0, "tea"), made(tiny_llama, 1, "zinc", text="why so {}, eh?")
    ids = other_tokens(sample, donor, seed=0)
    changed = [n for n, (a, b) in enumerate(zip(ids, sample.prompt_ids, strict=True)) if a != b]
    assert len(changed) == len(sample.exact_question)
    assert set(changed) <= set(sample.question_tokens) - set(sample.exact_question)
    outside = set(donor.question_tokens) - set(donor.exact_question)
    assert {ids[n] for n in changed} <= {donor.prompt_ids[n] for n in outside}
    assert ids == other_tokens(sample, donor, seed=0)
    whole = replace(donor, exact_question=donor.question_tokens)
    assert other_tokens(sample, whole, seed=0) is None
    assert other_tokens(whole, sample, seed=0) is None


def test_a_sequence_that_leaves_the_prefix_is_read_with_what_it_shares(tiny_llama):
    samples = known(tiny_llama)
    whole = {s.id: s.prompt_ids + written(s) for s in samples}
    strange = dict(zip(whole, (list(ids) for ids in whole.values()), strict=True))
    first, second, third, *_ = strange
    strange[first][4] = strange[second][0] = 77
    strange[third] = strange[third][:9]  # shorter than the prefix
    with Lease(tiny_llama) as lease:
        prefix = prefix_of(lease, samples)
        assert len(prefix) > 9
        ours = read_ends(lease, prefix, strange, budget=Budget.of(lease.model))
    plain = plain_states(tiny_llama, list(strange.values()))
    ours = torch.tensor(np.stack(list(ours.values()))).float()
    assert ((ours - plain).abs().amax() / plain.abs().amax()) < 1e-3


def test_patching_flips_the_planted_model_and_the_controls_do_not(planted):
    read_patched(planted, asking(planted.lease.model))
    samples = planted.samples[0] + planted.samples[1]
    ids = [s.id for s in samples]
    probe = planted_probe(planted.lease.model, samples, layer=4)

    def logits(name):
        states = StateBank(planted.store.path, ids).all_layers(name)
        return probe.logits(ids, torch.tensor(states)).numpy()

    clean = logits("patch-self")
    assert ((clean > 0) == [s.verdict == "wrong" for s in samples]).all()
    files = [planted.store.file(f"evidence/donors/{n:05d}.parquet") for n in range(2)]
    donors = pd.concat([pd.read_parquet(file) for file in files])
    verdict = {s.id: s.verdict for s in samples}
    for kind in ("matched", "random"):
        donor = donors[donors["kind"] == kind].set_index("id")["donor"]
        other = np.array([verdict[donor[id]] != verdict[id] for id in ids])
        assert other.any() and not other.all()
        np.testing.assert_array_equal(flips(clean, logits(f"patch-{kind}")), other)
    assert not flips(clean, logits("patch-other")).any()


def test_the_matched_donor_is_the_nearest_of_its_relation(tiny_llama):
    samples = known(tiny_llama)
    matched = by_kind(choose_donors(samples, seed=0), "matched")
    tea = matched["made:test:0"]
    # Not TEA, the same subject; not zinc, equally known; not the longer or the better known.
    assert tea.donor == "made:test:2" and tea.same_relation
    assert tea.popularity_gap == pytest.approx(np.log10(1.2))
    zinc = matched["made:test:5"]
    assert not zinc.same_relation and zinc.donor != "made:test:5"  # no other shares its relation
    assert np.isnan(matched["made:test:6"].popularity_gap)


def test_donors_are_about_something_else_and_do_not_depend_on_the_order(tiny_llama):
    samples, alias = known(tiny_llama), made(tiny_llama, 7, "chai", relation="drink")
    same = replace(alias.question, entity=samples[0].question.entity)
    samples.append(replace(alias, question=same))
    donors = choose_donors(samples, seed=3)
    named = {sample.id: sample for sample in samples}
    for donor in donors:
        own, other = named[donor.id], named[donor.donor]
        assert subject_text(own).casefold() != subject_text(other).casefold()
        assert own.question.entity != other.question.entity
    assert list(map(str, donors)) == list(map(str, choose_donors(samples[::-1], seed=3)))  # NaN
    drawn = [by_kind(choose_donors(samples, seed=s), "random") for s in range(9)]
    assert len({d["made:test:0"].donor for d in drawn}) > 2
    random, other = ({d.id: d.donor for d in donors if d.kind == k} for k in ("random", "other"))
    assert random == other


def test_a_sample_that_shares_an_accepted_answer_is_no_donor(tiny_llama):
    def answered(sample, *answers):
        return replace(sample, question=replace(sample.question, answers=answers))

    paris = answered(made(tiny_llama, 0, "tea", relation="r"), "Paris", "City of Light")
    same = answered(made(tiny_llama, 1, "ale", relation="r"), "the city of light")
    other = answered(made(tiny_llama, 2, "long island", relation="r"), "London")
    for seed in range(5):
        donors = choose_donors([paris, same, other], seed=seed)
        assert {d.donor for d in donors if d.id in (paris.id, same.id)} == {other.id}
    assert [d.donor for d in choose_donors([paris, same], seed=0)] == [""] * 6
