"""Folds: disjoint by entity, stable under growth, never empty; too little data is refused."""

from __future__ import annotations

import numpy as np
import pytest

from anchorscope.errors import UserError
from anchorscope.probes.folds import MIN_OVERALL, PROBES, check_enough, entity_folds, training_rows

ENTITIES = [f"entity {i % 150}" for i in range(600)]


def test_an_entity_lives_in_one_fold():
    fold = entity_folds(ENTITIES)
    homes = {
        entity: {int(f) for e, f in zip(ENTITIES, fold, strict=True) if e == entity}
        for entity in ENTITIES
    }
    assert all(len(found) == 1 for found in homes.values())
    assert set(fold.tolist()) == {0, 1, 2, 3, 4}


def test_added_questions_and_order_move_nobody():
    fold = entity_folds(ENTITIES)
    grown = entity_folds(["new 1", *ENTITIES, "new 2"])
    assert np.array_equal(grown[1:-1], fold)
    assert np.array_equal(entity_folds(ENTITIES[::-1]), fold[::-1])


def test_the_seed_decides():
    assert np.array_equal(entity_folds(ENTITIES, seed=3), entity_folds(ENTITIES, seed=3))
    assert not np.array_equal(entity_folds(ENTITIES, seed=3), entity_folds(ENTITIES, seed=4))


@pytest.mark.parametrize("seed", range(30))
def test_no_fold_is_empty_even_with_as_many_entities_as_folds(seed: int):
    names = ["Rome", "Oslo", "Lima", "Bern", "Kyiv"]
    fold = entity_folds(names * 2, folds=5, seed=seed)
    assert sorted(fold[:5].tolist()) == [0, 1, 2, 3, 4]
    assert np.array_equal(fold[:5], fold[5:])
    assert np.array_equal(entity_folds(names[::-1], seed=seed), fold[:5][::-1])


def test_too_few_entities_folds_or_names_are_refused():
    with pytest.raises(UserError, match="about 2 entities, fewer than the 5 folds"):
        entity_folds(["a", "b", "a"])
    with pytest.raises(UserError, match="at least 3"):
        entity_folds(ENTITIES, folds=2)
    with pytest.raises(UserError, match="2 of 7 questions name no entity"):
        entity_folds(["a", "b", "c", "d", "e", "", ""])


@pytest.mark.parametrize("folds", [3, 4, 5, 8])
def test_training_parts_are_disjoint_and_leave_the_held_out_fold_alone(folds: int):
    fold = entity_folds(ENTITIES, folds=folds)
    for held_out in range(folds):
        rows = {p: training_rows(fold, held_out=held_out, probe=p) for p in PROBES}
        assert np.array_equal(rows["paper"], fold != held_out)
        assert not (rows["a"] & rows["b"]).any()
        assert np.array_equal(rows["a"] | rows["b"], rows["paper"])
        assert rows["a"].any()
        assert rows["b"].any()
        tested = {e for e, f in zip(ENTITIES, fold, strict=True) if f == held_out}
        learnt = {e for e, r in zip(ENTITIES, rows["paper"], strict=True) if r}
        assert not tested & learnt


def test_too_few_of_a_class_is_said_with_both_counts():
    fold = np.arange(200) % 5
    z = np.zeros(200, dtype=int)
    z[:MIN_OVERALL] = 1
    check_enough(z, fold)
    z[0] = 0
    with pytest.raises(UserError, match=r"atlas: 19 wrong and 181 right .* at least 20 of each"):
        check_enough(z, fold, dataset="atlas")
    with pytest.raises(UserError, match=r"181 wrong and 19 right"):
        check_enough(1 - z, fold)


def test_a_class_that_sits_in_one_fold_is_refused():
    fold = np.arange(200) % 5
    z = (fold == 0).astype(int)
    with pytest.raises(UserError, match="leaves a probe only 0 of a class"):
        check_enough(z, fold)
