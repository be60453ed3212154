"""Who is a donor to whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit.planted import by_kind, known, made

from anchorscope.evidence.patching import choose_donors, subject_text


def test_the_matched_donor_is_the_nearest_of_its_relation(tiny_llama):
    samples = known(tiny_llama)
    matched = by_kind(choose_donors(samples, seed=0), "matched")
    tea = matched["made:test:0"]
    # Not TEA, the same subject; not zinc, equally known; not the longer or the better known.
    assert tea.donor == "made:test:2" and tea.same_relation
    assert tea.popularity_gap == pytest.approx(np.log10(1.2))
    zinc = matched["made:test:5"]
    assert not zinc.same_relation and zinc.donor != "made:test:5"  # nobody shares its relation
    assert np.isnan(matched["made:test:6"].popularity_gap)


def test_donors_are_about_somebody_else_and_do_not_depend_on_the_order(tiny_llama):
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
    one = by_kind(donors, "other")
    assert {i: d.donor for i, d in by_kind(donors, "random").items()} == {
        i: d.donor for i, d in one.items()
    }


def test_nobody_who_shares_an_accepted_answer_is_a_donor(tiny_llama):
    def answered(sample, *answers):
        return replace(sample, question=replace(sample.question, answers=answers))

    paris = answered(made(tiny_llama, 0, "tea", relation="r"), "Paris", "City of Light")
    same = answered(made(tiny_llama, 1, "ale", relation="r"), "the city of light")
    other = answered(made(tiny_llama, 2, "long island", relation="r"), "London")
    for seed in range(5):
        donors = choose_donors([paris, same, other], seed=seed)
        assert {d.donor for d in donors if d.id in (paris.id, same.id)} == {other.id}
    assert [d.donor for d in choose_donors([paris, same], seed=0)] == [""] * 6
