"""Packs longer than those tried on load: the run's own are held against their last row alone."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.check.trial import mark_positions
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits import PackTooLong, facts_of, set_facts
from anchorscope.engine.passes import KNOCKOUT
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import row_for
from anchorscope.models import Model, load_model

PREFIX = (10, 11, 12, 13)
PROMPTS = [(*PREFIX, 20 + n, 120 + n, 40, 50 + n, 60, 70 + n) for n in range(100)]


@pytest.fixture
def model(monkeypatch) -> Model:
    """A tiny model that was checked as before a run."""
    monkeypatch.setattr("anchorscope.engine.check.checks._PROVED", {})
    monkeypatch.setattr("anchorscope.engine.check.checks.load_proof", lambda *_: None)
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    require_understood(model)
    assert facts_of(model.lm).pack_proof.tokens == 128
    return model


def forbid_made_up_rows(model: Model) -> None:
    noted = facts_of(model.lm)
    never = noted.pack_proof._replace(more=lambda lease, tokens: pytest.fail("made-up rows"))
    set_facts(model.lm, replace(noted, pack_proof=never))


def look_at_places(monkeypatch, model: Model, *, beyond: int) -> None:
    """Like a model that scales its inputs by their place in a pack from a certain one on."""
    kind = type(model.parts.attentions[0])
    forward = kind.forward

    @functools.wraps(forward)
    def by_place(self, hidden_states, *args, **kwargs):
        scale = 1.0 + (torch.arange(hidden_states.shape[1]) >= beyond)
        return forward(self, hidden_states * scale[None, :, None], *args, **kwargs)

    monkeypatch.setattr(kind, "forward", by_place)


def trunk_states(model: Model, tokens: int) -> tuple[torch.Tensor, list[int]]:
    """The states [prompt, layer, width] of all prompts in such batches, and how many rows each."""
    states, sizes = torch.empty(len(PROMPTS), model.blocks, model.parts.width), []
    budget = Budget(tokens)
    with Lease(model) as lease:
        prefix = read_prefix(lease, PREFIX)
        for batch, last in in_batches(
            range(len(PROMPTS)),
            lambda rows: (
                grow_trunk(
                    lease, prefix, [PROMPTS[n] for n in rows], room=0, head=False
                ).last.states
            ),
            length=lambda n: len(PROMPTS[n]) - len(PREFIX),
            then=lambda n: n,
            budget=budget,
        ):
            states[batch] = last
            sizes.append(len(batch))
    return states, sizes


def test_a_longer_pack_is_held_against_its_own_last_row(model):
    forbid_made_up_rows(model)
    states, sizes = trunk_states(model, 1024)
    assert sizes == [100]
    assert facts_of(model.lm).pack_proof.tokens == 600  # no two of these tokens are alike
    assert torch.allclose(states, trunk_states(model, 6)[0], atol=1e-5)


def test_a_row_under_an_intervention_is_held_against_itself_as_well(model):
    how = {"blocks": model.blocks, "turn_at": len(PREFIX), "seed": 0}
    samples = [mark_positions(p, (5, 6), n, start=len(PREFIX)) for n, p in enumerate(PROMPTS)]
    rows = [row_for(s, n, KNOCKOUT, **how) for n, s in enumerate(samples)]
    short = facts_of(model.lm)
    with Lease(model) as lease:
        prefix = read_prefix(lease, PREFIX)
        trunk = grow_trunk(lease, prefix, PROMPTS, room=0, head=False).trunk
        set_facts(model.lm, short)
        forbid_made_up_rows(model)
        ((batch, _),) = read_rows(lease, trunk, rows, budget=Budget(4096))
    assert len(batch) == 100
    assert facts_of(model.lm).pack_proof.tokens > 128


def test_a_pack_whose_rows_change_one_another_is_made_again_in_smaller_ones(model, monkeypatch):
    look_at_places(monkeypatch, model, beyond=300)
    states, sizes = trunk_states(model, 1024)
    assert max(sizes) * 6 <= 256 and sum(sizes) == 100
    assert facts_of(model.lm).largest == 256 == Budget.of(model).tokens
    assert torch.allclose(states, trunk_states(model, 6)[0], atol=1e-5)


def test_without_batches_that_can_shrink_it_is_an_error(model, monkeypatch):
    look_at_places(monkeypatch, model, beyond=300)
    with Lease(model) as lease, pytest.raises(PackTooLong, match="right up to 256 tokens; 600 we"):
        grow_trunk(lease, read_prefix(lease, PREFIX), PROMPTS, room=0, head=False)


def test_the_row_that_ends_last_is_compared_and_not_one_that_shares_all_its_tokens(
    model, monkeypatch
):
    """The last of these rows is the first one again: it stands at the front of the pack."""
    look_at_places(monkeypatch, model, beyond=300)
    prompts = [*PROMPTS, PROMPTS[0]]
    with Lease(model) as lease, pytest.raises(PackTooLong, match="right up to 256 tokens"):
        grow_trunk(lease, read_prefix(lease, PREFIX), prompts, room=0, head=False)


def test_what_a_longer_pack_has_shown_is_kept_when_the_model_is_asked_for_again(model):
    trunk_states(model, 1024)
    require_understood(model)
    assert facts_of(model.lm).pack_proof.tokens == 600


def test_a_row_that_rounds_too_far_proves_nothing(model):
    """Made-up rows are tried instead, and what they say counts."""
    noted = facts_of(model.lm)
    tried = []

    def more(lease, tokens):
        tried.append(tokens)
        return True

    far = noted.pack_proof._replace(near=lambda a, b: False, more=more)
    set_facts(model.lm, replace(noted, pack_proof=far))
    trunk_states(model, 1024)
    assert tried == [1024] and facts_of(model.lm).pack_proof.tokens == 1024


def test_nobody_is_shown_the_row_that_is_read_once_more(model):
    seen = []
    with Lease(model) as lease:
        prefix = read_prefix(lease, PREFIX)
        lease.observer = lambda weights: seen.append(len(weights))
        grow_trunk(lease, prefix, PROMPTS, room=0, head=False)
        assert lease.observer is not None
    assert seen == [len(PROMPTS)] * model.blocks
