"""Semantic entropy, agreement and lexical similarity against brute force, and what they cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kit.detect_worlds import material, plain, write_run
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from anchorscope.detect.compare import detectors_table
from anchorscope.detect.evaluate import evaluate
from anchorscope.detect.kinds import make_method
from anchorscope.detect.sampled.answers import SampledAnswers
from anchorscope.detect.sampled.meaning import groups, same_answer
from anchorscope.detect.sampled.methods import rouge_l
from anchorscope.detect.sampled.nli import Nli, with_entailment
from anchorscope.errors import UserError

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
            log_probs=tuple(-rng.random(k) * 5),
            lengths=tuple(int(v) for v in rng.integers(1, 6, k)),
            passes=3 * k,
            ms=7.0,
        )
        texts.append(
            replace(text, question="What is the capital?", answer="Paris", sampled=sampled)
        )
    return replace(world, texts=tuple(texts))


def by_hand(text, weights):
    """Entropy over meanings that were assigned by hand, term by term."""
    total = sum(weights)
    mass = {}
    for said, weight in zip(text.sampled.texts, weights, strict=True):
        mass[MEANS[said]] = mass.get(MEANS[said], 0.0) + weight / total
    return -sum(p * math.log(p) for p in mass.values())


def test_semantic_entropy_is_that_of_meanings_assigned_by_hand():
    world = drawn_world()
    counted = make_method("semantic-entropy").decision_function(world)
    likely = make_method("semantic-entropy-likelihood").decision_function(world)
    for text, one, other in zip(world.texts, counted, likely, strict=True):
        assert one == pytest.approx(by_hand(text, [1.0] * 6))
        pairs = zip(text.sampled.log_probs, text.sampled.lengths, strict=True)
        assert other == pytest.approx(by_hand(text, [math.exp(p / n) for p, n in pairs]))
    assert len({round(v, 6) for v in counted}) > 5


def test_self_check_is_the_share_of_answers_with_another_meaning():
    world = drawn_world()
    score = make_method("self-check").decision_function(world)
    wanted = [np.mean([MEANS[s] != "p" for s in t.sampled.texts]) for t in world.texts]
    assert score == pytest.approx(wanted)


def test_rouge_l_is_the_longest_common_subsequence_by_enumeration():
    rng = np.random.default_rng(0)

    def subsequences(of):
        return {c for n in range(len(of) + 1) for c in itertools.combinations(of, n)}

    for _ in range(50):
        a, b = (list(rng.choice(list("abc"), size=rng.integers(0, 6))) for _ in range(2))
        longest = max(map(len, subsequences(a) & subsequences(b)))
        wanted = 2 * longest / (len(a) + len(b)) if a or b else 1.0
        assert rouge_l(a, b) == pytest.approx(wanted)


def test_lexical_similarity_is_minus_the_mean_over_pairs():
    world = drawn_world(n=4)
    said = ("red car", "red bus", "the red car")
    text = replace(world.texts[0], sampled=replace(world.texts[0].sampled, texts=said))
    world = replace(world, texts=(text, *world.texts[1:]))
    found = make_method("lexical-similarity").decision_function(world)[0]
    assert found == pytest.approx(-(0.5 + 1.0 + 0.5) / 3)


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


def test_runs_without_drawn_answers_leave_them_out_with_one_word(cli, tmp_path):
    run = write_run(tmp_path / "run", [plain(n=60)])
    code, _, error = cli("detect", "eval", run, "--nli", "anything", "--methods", "self-check")
    assert code == 2
    assert "--nli compares drawn answers, and these runs have none" in error
    world = plain(n=60)
    for name in ("semantic-entropy", "self-check", "lexical-similarity"):
        assert "detect collect --samples 10" in make_method(name).lacks(world)
    assert "not kept" in make_method("token-features").lacks(world)


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
    scores = evaluate(world, names=("token-features", "mean-entropy"), splits=("entity",), folds=3)
    table = detectors_table(scores, model="m", resamples=100).set_index("detector")
    assert table.loc["token-features", "auroc"] > 0.99
    assert table.loc["mean-entropy", "auroc"] < 0.8


def nli_folder(folder, labels):
    """A tiny random classifier of pairs over whole words."""
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "What": 2, "is": 3, "the": 4, "capital": 5, "?": 6,
                  "Paris": 7, "London": 8, "Rome": 9, "It": 10}  # fmt: skip
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=len(labels), initializer_range=1.0,
        id2label=dict(enumerate(labels)), label2id={v: n for n, v in enumerate(labels)},
    )  # fmt: skip
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    return str(folder)


def test_an_nli_model_groups_what_entails_each_other(tmp_path):
    name = nli_folder(tmp_path / "nli", ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"))
    nli, world = Nli.load(name), drawn_world(n=24)
    entailed = with_entailment(world, nli)

    def one(a, b):
        fed = nli.tokenizer(a, b, return_tensors="pt")
        with torch.no_grad():
            return int(nli.lm(**fed).logits[0].argmax()) == 2

    for text in entailed.texts[:6]:
        said = [f"{text.question} {a}" for a in (text.answer, *text.sampled.texts)]
        wanted = groups(said, lambda a, b: a == b or (one(a, b) and one(b, a)))
        assert text.sampled.nli.meaning == wanted
        distinct = len(set(said))
        assert text.sampled.nli.passes == distinct * (distinct - 1)
    method = make_method("semantic-entropy-nli")
    assert not method.lacks(entailed) and "--nli" in method.lacks(world)
    assert method.cost(entailed).passes > make_method("semantic-entropy").cost(entailed).passes


def test_a_classifier_without_entailment_is_no_nli_model(tmp_path):
    name = nli_folder(tmp_path / "other", ("spam", "ham"))
    with pytest.raises(UserError, match="has no class 'entailment' \\(it has spam, ham\\)"):
        Nli.load(name)
    with pytest.raises(UserError, match="No NLI model could be loaded"):
        Nli.load(str(tmp_path / "nowhere"))


def test_the_text_classifier_learns_from_the_vectors_beside_the_states():
    """Vectors that hold the class, states that do not; without vectors it is left out."""
    rng = np.random.default_rng(0)
    z = np.arange(200) % 2
    vectors = rng.standard_normal((200, 1, 5))
    vectors[:, 0, 2] += 3 * (2 * z - 1)
    clean = rng.standard_normal((200, 1, 5))
    world = material(z, {"clean": clean, "text-embedding": vectors})
    scores = evaluate(world, names=("text-embedding", "probe"), splits=("entity",), folds=3)
    table = detectors_table(scores, model="m", resamples=100).set_index("detector")
    assert table.loc["text-embedding", "auroc"] > 0.95
    assert table.loc["probe", "auroc"] < 0.7
    assert make_method("text-embedding").lacks(plain(n=20))
