"""Semantic entropy and self-check against brute force, what they cost, and token features."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from kit.detect_worlds import plain

from anchorscope.detect.compare import detectors_table
from anchorscope.detect.evaluate import evaluate
from anchorscope.detect.kinds import make_method
from anchorscope.detect.kinds.sampled import same_answer
from anchorscope.detect.material import SampledAnswers

WORDS = ("Paris", "It is Paris.", "London", "london", "Rome", "I don't know", "Not sure")
MEANS = {"Paris": "p", "It is Paris.": "p", "London": "l", "london": "l", "Rome": "r",
         "I don't know": "?", "Not sure": "?"}  # fmt: skip


def drawn_world(n=60, k=6, seed=0):
    """Answers with `k` companions drawn from WORDS."""
    rng = np.random.default_rng(seed)
    world = plain(n=n)
    texts = []
    for text in world.texts:
        said = tuple(rng.choice(WORDS, size=k))
        sampled = SampledAnswers(
            texts=said,
            passes=3 * k,
            ms=7.0,
        )
        texts.append(
            replace(text, question="What is the capital?", answer="Paris", sampled=sampled)
        )
    return replace(world, texts=tuple(texts))


def by_hand(text):
    """Entropy over meanings that were assigned by hand, term by term."""
    means = [MEANS[answer] for answer in text.sampled.texts]
    shares = [means.count(one) / len(means) for one in set(means)]
    return -sum(p * math.log(p) for p in shares)


def test_semantic_entropy_is_that_of_meanings_assigned_by_hand():
    world = drawn_world()
    counted = make_method("semantic-entropy").decision_function(world)
    for text, one in zip(world.texts, counted, strict=True):
        assert one == pytest.approx(by_hand(text))
    assert len({round(v, 6) for v in counted}) > 5


def test_self_check_is_the_share_of_answers_with_another_meaning():
    world = drawn_world()
    score = make_method("self-check").decision_function(world)
    wanted = [np.mean([MEANS[s] != "p" for s in t.sampled.texts]) for t in world.texts]
    assert score == pytest.approx(wanted)


def test_answers_are_the_same_either_way_round():
    assert same_answer("Paris", "The answer is Paris", "Where?")
    assert same_answer("The answer is Paris", "Paris", "Where?")
    assert not same_answer("Paris", "London", "Where?")
    assert same_answer("I don't know", "", "Where?")
    assert not same_answer("I don't know", "Paris", "Where?")
    assert not same_answer("👍", "yes", "Is it?")


def test_the_cost_of_drawing_stands_in_the_table():
    world = drawn_world()
    table = detectors_table(
        evaluate(world, names=("self-check", "probe"), folds=3), model="m", resamples=100
    ).set_index(["split", "detector"])
    assert table.loc[("entity", "self-check"), "extra_passes"] == 18
    assert table.loc[("entity", "self-check"), "ms_per_answer"] >= 7
    assert table.loc[("entity", "probe"), "extra_passes"] == 0


def test_token_features_find_what_no_single_statistic_holds():
    """The class is in the last token's entropy alone, above or below that of the first."""
    rng = np.random.default_rng(0)
    world = plain(n=300, strength=0.0)
    texts = []
    for text, z in zip(world.texts, world.z, strict=True):
        first = rng.normal()
        entropies = (first + 5, first + 5 + (1 if z else -1))
        texts.append(replace(text, entropies=entropies, log_probs=(-1.0, -2.0)))
    world = replace(world, texts=tuple(texts))
    scores = evaluate(world, names=("token-features", "min-log-prob"), splits=("entity",), folds=3)
    table = detectors_table(scores, model="m", resamples=100).set_index("detector")
    assert table.loc["token-features", "auroc"] > 0.99
    assert table.loc["min-log-prob", "auroc"] < 0.8


def test_a_run_without_sampled_answers_says_how_to_get_them():
    world = plain(n=60)
    for name in ("semantic-entropy", "self-check"):
        assert "detect collect --samples 10" in make_method(name).lacks(world)
    assert "not kept" in make_method("token-features").lacks(world)
