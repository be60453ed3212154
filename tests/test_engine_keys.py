"""Which keys are cut, where a row then starts, and how much each key is attended to."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit.engine_samples import CLOSE, PREFIX, SAMPLES, SEED, cut_of, engine_states
from kit.plain import eager_mass, plain_states

from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.interventions import (
    KNOCKOUT,
    NEUTRAL,
    Intervention,
    TokenPositions,
    keys_of,
)
from anchorscope.engine.layout import UnsupportedModel, require_rule
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import first_changed, row_for, with_mass


def test_where_a_row_starts():
    assert first_changed(SAMPLES[0], SAMPLES[0].exact_question, len(PREFIX)) == len(PREFIX) + 5
    assert first_changed(SAMPLES[1], SAMPLES[1].exact_question, len(PREFIX)) == len(PREFIX) + 4
    assert first_changed(SAMPLES[0], (), len(PREFIX)) == SAMPLES[0].answer_at - 1
    assert first_changed(SAMPLES[0], (5,), len(PREFIX)) == len(PREFIX)


def test_a_row_holds_no_key_that_no_token_sees():
    """Behind a gap in E_Q: cut in a part of the model or after the softmax, it is seen."""
    sample, start = SAMPLES[1], len(PREFIX) + 4
    trunk: Any = SimpleNamespace(prefix=PREFIX, pairs=range(4))
    behind = {len(PREFIX) + 9, len(PREFIX) + 10}
    whole = tuple(range(start, len(sample.ids)))
    row = row_for(trunk, sample, 0, KNOCKOUT, seed=SEED)
    assert row.at == tuple(at for at in whole if at not in behind)
    assert row.ids == tuple(sample.ids[at] for at in row.at)
    for part in ({"where": "post"}, {"layers": "window:2"}, {"layers": "single"},
                 {"heads": ((1, 0),)}, {"heads": ()}):  # fmt: skip
        row = row_for(trunk, sample, 0, Intervention(name="part", **part), seed=SEED)
        assert row.at == whole and row.ids == sample.ids[start:]


@pytest.mark.parametrize("keys", ["exact", "question"])
def test_the_first_token_is_never_a_key(keys: str):
    everything = tuple(range(len(PREFIX) + 4))
    sample = replace(SAMPLES[0], question_tokens=everything, exact_question=everything)
    assert keys_of(sample, keys, seed=SEED) == everything[1:]


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 4, 4, dtype=torch.bool), torch.zeros(4)])
def test_a_mask_from_which_nothing_could_be_cut_is_refused(mask):
    with pytest.raises(UnsupportedModel, match="so nothing can be cut from it"):
        require_rule(mask, torch.nn.Linear(1, 1))


def marked_prompt(
    question: range, exact: tuple[int, ...], *, answer_at: int, content: tuple[int, ...] = ()
) -> TokenPositions:
    """A prompt of worked examples, the question's tokens, and the end of its turn."""
    mass = tuple(0.01 * place for place in range(answer_at + 1))
    return TokenPositions(id="q", ids=tuple(range(answer_at + 1)), answer_at=answer_at, mass=mass,
                          question_tokens=tuple(question), exact_question=exact,
                          content_tokens=(*exact, *content))  # fmt: skip


def test_neutral_tokens_are_of_the_question_and_its_turn_then_of_the_examples():
    drawn = [
        {p for seed in range(200) for p in keys_of(at, "neutral", seed=seed)}
        for at in (
            marked_prompt(range(40, 48), (43, 44, 45), answer_at=52, content=(40, 41)),
            marked_prompt(range(40, 48), tuple(range(40, 48)), answer_at=52),  # three behind it
        )
    ]
    # Never 40 and 41, content words; never 51, which the answer's first word comes from.
    assert drawn[0] <= {42, 46, 47, 48, 49, 50} and len(drawn[0]) > 3
    assert drawn[1] >= {48, 49, 50} and drawn[1] <= {*range(1, 40), 48, 49, 50}
    assert len(drawn[1]) > 20


def test_neutral_tokens_are_as_many_as_the_prompt_can_give():
    for exact, count in (((1, 2), 2), ((1, 2, 3, 4), 2), ((0, 1), 1)):
        chosen = keys_of(marked_prompt(range(8), exact, answer_at=8), "neutral", seed=1)
        assert len(chosen) == count
        assert not set(chosen) & {0, 7, *exact}


def test_attention_mass_is_that_of_eager_attention(tiny):
    with Lease(tiny) as lease:
        front = read_prefix(lease, PREFIX)
        prompts = [s.ids[: s.answer_at] for s in SAMPLES]
        trunk = grow_trunk(lease, front, prompts).trunk
        found = with_mass(lease, trunk, SAMPLES, budget=Budget(20))
    for sample, given in zip(SAMPLES, found, strict=True):
        assert given.mass == pytest.approx(eager_mass(tiny, sample.ids), abs=1e-5)


def test_neutral_keys_get_as_much_attention_as_exact_ones():
    """Of the pairs among four tokens the one whose mass is that of E_Q, whatever the seed."""
    at = marked_prompt(range(40, 48), (43, 44), answer_at=52, content=(40, 41, 42, 45, 46))
    own = {47: 0.1, 48: 0.2, 49: 0.4, 50: 0.8}
    for pair in combinations(own, 2):
        mass = dict.fromkeys(range(53), 0.0) | own | {43: own[pair[0]], 44: own[pair[1]]}
        given = replace(at, mass=tuple(mass.values()))
        assert {keys_of(given, "neutral", seed=seed) for seed in range(5)} == {pair}


def test_the_neutral_knockout_equals_the_plain_way(tiny_llama):
    marks = SAMPLES[:4]
    plain = plain_states(tiny_llama, [m.ids for m in marks], cut_of(marks, NEUTRAL))
    torch.testing.assert_close(engine_states(tiny_llama, marks, NEUTRAL), plain, **CLOSE)
