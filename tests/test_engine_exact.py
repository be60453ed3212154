"""The identities of METHOD §2, exactly, against stock attention over whole prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kit.engine_samples import CLOSE, PREFIX, SAMPLES, cut_of, engine_states
from kit.plain import Change, plain_scores, plain_states

from anchorscope.engine.decode import (
    grow_trunk,
    pad_left,
    read_prefix,
    shared_prefix,
    write_answers,
)
from anchorscope.engine.interventions import ANSWER_ONLY, KNOCKOUT, NEUTRAL, QUESTION, Intervention
from anchorscope.engine.layout import PAD, Edges, GrowingCache, Layout
from anchorscope.engine.lease import Lease


@pytest.mark.parametrize("intervention", [KNOCKOUT, QUESTION, NEUTRAL], ids=lambda i: i.name)
def test_one_pass_equals_the_plain_way(tiny, intervention):
    ids = [s.ids for s in SAMPLES]
    plain = plain_states(tiny, ids, cut_of(SAMPLES, intervention))
    torch.testing.assert_close(engine_states(tiny, SAMPLES, intervention), plain, **CLOSE)
    clean = plain_states(tiny, ids)
    assert (plain - clean).abs().amax() > 1e-2  # the cut does something at all


@pytest.mark.parametrize(
    ("layers", "width"), [("cumulative", 9), ("single", 1), ("window:2", 2), ("window:9", 9)]
)
def test_windows_equal_a_loop_over_k(tiny, layers, width):
    fast = engine_states(tiny, SAMPLES, Intervention(name="w", layers=layers))
    for k in range(1, tiny.blocks + 1):
        cut = cut_of(SAMPLES, KNOCKOUT, lambda block, k=k: k - width < block <= k)
        plain = plain_states(tiny, [s.ids for s in SAMPLES], cut)
        torch.testing.assert_close(fast[:, k - 1], plain[:, k - 1], **CLOSE)


def test_an_empty_knockout_changes_nothing_bit_for_bit(tiny):
    """The same rows with no edges given, with none of them blocked, and blocked in no block."""
    ids = pad_left([s.ids for s in SAMPLES], 0, tiny.device)
    at = pad_left([range(len(s.ids)) for s in SAMPLES], PAD, tiny.device)
    rows, queries = at.shape
    none = torch.zeros(rows, queries, queries, dtype=torch.bool)
    blocks = torch.ones(rows, tiny.blocks, dtype=torch.bool)
    given = [None, Edges(none, blocks), Edges(~none, ~blocks, post=torch.zeros(rows).bool())]
    with Lease(tiny) as lease:
        clean, empty, nowhere = (
            lease.run(
                ids,
                Layout(at, at, 0, edges=edges),
                GrowingCache(tiny.blocks, queries),
                watch=lambda weights: None,  # as for edges cut after the softmax
            ).states
            for edges in given
        )
    assert torch.equal(clean, empty)
    assert torch.equal(clean, nowhere)
    torch.testing.assert_close(clean, plain_states(tiny, [s.ids for s in SAMPLES]), **CLOSE)


def test_a_cut_of_no_tokens_is_the_clean_pass_however_long_the_answer(tiny):
    bare = [replace(sample, exact_question=()) for sample in SAMPLES]
    plain = plain_states(tiny, [s.ids for s in SAMPLES])
    torch.testing.assert_close(engine_states(tiny, bare, KNOCKOUT), plain, **CLOSE)


def test_batch_one_equals_batch_many(tiny):
    many = engine_states(tiny, SAMPLES, KNOCKOUT, budget=10_000)
    one = engine_states(tiny, SAMPLES, KNOCKOUT, budget=1)
    alone = torch.cat([engine_states(tiny, [s], KNOCKOUT) for s in SAMPLES])
    torch.testing.assert_close(many, one, **CLOSE)
    torch.testing.assert_close(many, alone, **CLOSE)
    without_prefix = engine_states(tiny, SAMPLES, KNOCKOUT, prefix=())
    torch.testing.assert_close(many, without_prefix, **CLOSE)


def test_answer_only_is_a_plain_pass_over_the_answer(tiny):
    ids = [(s.ids[0], *s.ids[s.answer_at :]) for s in SAMPLES]
    states = engine_states(tiny, SAMPLES, ANSWER_ONLY)
    torch.testing.assert_close(states, plain_states(tiny, ids), **CLOSE)


def test_all_heads_equal_the_full_knockout_and_one_head_does_not(tiny):
    heads = tiny.lm.config.num_attention_heads
    every = tuple((b, h) for b in range(1, tiny.blocks + 1) for h in range(heads))
    full = engine_states(tiny, SAMPLES, KNOCKOUT)
    # To rounding: a row that is cut head by head holds the keys' own tokens too, unseen.
    split = engine_states(tiny, SAMPLES, Intervention(name="h", heads=every))
    torch.testing.assert_close(split, full, atol=1e-4, rtol=0)
    one = engine_states(tiny, SAMPLES, Intervention(name="h", heads=((2, 1),)))
    clean = plain_states(tiny, [s.ids for s in SAMPLES])
    torch.testing.assert_close(one[:, 0], clean[:, 0], **CLOSE)
    assert (one[:, 1] - clean[:, 1]).abs().amax() > 1e-4


def test_post_takes_the_weight_away_and_leaves_the_others(tiny):
    """Against eager attention whose weights are zeroed after the softmax, not renormalised."""
    cut, ids = cut_of(SAMPLES[:1], KNOCKOUT), SAMPLES[0].ids
    plain = plain_scores(tiny, ids, lambda q, k: cut(0, 1, q, k), Change(post=True))
    post = engine_states(tiny, SAMPLES[:1], Intervention(name="post", where="post"))
    torch.testing.assert_close(post[0], plain, **CLOSE)


@pytest.mark.parametrize("beta", [1.5, -2.0])
def test_a_boost_is_an_addition_to_the_scores_of_its_edges(tiny, beta):
    samples = [replace(s, exact_answer=tuple(range(s.answer_at, len(s.ids)))) for s in SAMPLES[:3]]
    for sample, ours in zip(
        samples, engine_states(tiny, samples, Intervention(name="b", boost=beta)), strict=True
    ):
        edge = lambda q, k, s=sample: q in s.exact_answer and k in s.exact_question  # noqa: E731
        plain = plain_scores(tiny, sample.ids, edge, Change(added=beta))
        torch.testing.assert_close(ours, plain, **CLOSE)


def test_answers_equal_those_of_generate(tiny):
    """Tokens, log-probabilities and the states caught on the way, against transformers."""
    prompts = [s.ids[: s.answer_at] for s in SAMPLES]
    stop = torch.tensor([7, 9, 13, 40, 41, 42, 43])
    with Lease(tiny) as lease:
        prefix = read_prefix(lease, shared_prefix(prompts, stop=len(PREFIX)))
        written = write_answers(lease, prefix, prompts, stop_ids=stop, limit=9)
    for prompt, answer, states in zip(prompts, written.answers, written.states, strict=True):
        plain = tiny.lm.generate(
            torch.tensor([prompt]), max_new_tokens=9, do_sample=False, eos_token_id=stop.tolist(),
            pad_token_id=0, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        tokens = plain.sequences[0, len(prompt) :].tolist()
        ended = tokens[-1] in stop.tolist()
        assert list(answer.token_ids) == (tokens[:-1] if ended else tokens)
        assert answer.finished == ended
        scores = [
            torch.log_softmax(s[0], -1)[t].item() for s, t in zip(plain.scores, tokens, strict=True)
        ]
        assert answer.log_probs == pytest.approx(scores[: len(answer.log_probs)], abs=1e-4)
        spread = [torch.log_softmax(s[0], -1) for s in plain.scores]
        entropies = [-(row.exp() * row).sum().item() for row in spread]
        assert answer.entropies == pytest.approx(entropies[: len(answer.token_ids)], abs=1e-4)
        first = torch.log_softmax(plain.scores[0][0], -1)
        assert answer.first_entropy == pytest.approx(-(first.exp() * first).sum().item(), abs=1e-4)
        for n in {min(1, len(answer.token_ids)), len(answer.token_ids)} - {0}:
            state = plain_states(tiny, [prompt + answer.token_ids[:n]])[0]
            torch.testing.assert_close(states[n - 1], state, **CLOSE)


def test_states_at_one_more_position_are_those_of_a_pass_that_ends_there(tiny):
    """The last token of the question: nothing that comes later has a say in it."""
    ends = [len(PREFIX) + n for n in (2, 0, 4, 7, 3)]
    with Lease(tiny) as lease:
        prefix = read_prefix(lease, PREFIX)
        prompts = [s.ids[: s.answer_at] for s in SAMPLES]
        grown = grow_trunk(lease, prefix, prompts, extra_position=ends)
    short = [s.ids[: end + 1] for s, end in zip(SAMPLES, ends, strict=True)]
    torch.testing.assert_close(grown.last.extra, plain_states(tiny, short), **CLOSE)
    torch.testing.assert_close(grown.last.states, plain_states(tiny, prompts), **CLOSE)
