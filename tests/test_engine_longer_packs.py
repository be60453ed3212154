"""Packs longer than those tried on load: made-up rows of that length are tried first."""

from __future__ import annotations

import functools

import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.check import require_understood
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits import Bounds, ModelFacts, PackTooLong, facts_of, set_facts
from anchorscope.models import Model, load_model

PREFIX = (10, 11, 12, 13)
PROMPTS = [(*PREFIX, 20 + n, 120 + n, 40, 50 + n, 60, 70 + n) for n in range(100)]


@pytest.fixture
def model(tmp_path, monkeypatch) -> Model:
    """A tiny model that was checked with packs of 128 tokens."""
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr("anchorscope.engine.check.checks._PROVED", {})
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    set_facts(model.lm, ModelFacts(bounds=Bounds(128, None)))
    require_understood(model)
    assert facts_of(model.lm).pack_proof.tokens == 128
    return model


@pytest.fixture
def by_place(model, monkeypatch) -> Model:
    """Like a model that scales its inputs by their place in a pack, from the 300th on."""
    kind = type(model.parts.attentions[0])
    forward = kind.forward

    @functools.wraps(forward)
    def scaled(self, hidden_states, *args, **kwargs):
        scale = 1.0 + (torch.arange(hidden_states.shape[1]) >= 300)
        return forward(self, hidden_states * scale[None, :, None], *args, **kwargs)

    monkeypatch.setattr(kind, "forward", scaled)
    return model


def trunk_states(model: Model, tokens: int) -> tuple[torch.Tensor, list[int]]:
    """The states [prompt, layer, width] of all prompts in such batches, and how many rows each."""
    states, sizes = torch.empty(len(PROMPTS), model.blocks, model.parts.width), []
    with Lease(model) as lease:
        prefix = read_prefix(lease, PREFIX)

        def work(rows: list[int]) -> torch.Tensor:
            prompts = [PROMPTS[n] for n in rows]
            return grow_trunk(lease, prefix, prompts, room=0, head=False).last.states

        for batch, last in in_batches(
            range(len(PROMPTS)), work, length=lambda n: 6, then=lambda n: n, budget=Budget(tokens)
        ):
            states[batch] = last
            sizes.append(len(batch))
    return states, sizes


def test_longer_pack_is_tried_once_and_unobserved(model):
    seen = []
    with Lease(model) as lease:
        prefix = read_prefix(lease, PREFIX)
        lease.observer = lambda weights: seen.append(len(weights))
        grow_trunk(lease, prefix, PROMPTS, room=0, head=False)
    assert seen == [len(PROMPTS)] * model.blocks
    assert facts_of(model.lm).pack_proof.tokens == 1024  # 600 tokens, none alike
    require_understood(model)  # asked for again: what was tried since is kept
    assert facts_of(model.lm).pack_proof.tokens == 1024


def test_pack_whose_rows_change_one_another_is_made_again_in_smaller_ones(by_place):
    states, sizes = trunk_states(by_place, 1024)
    assert max(sizes) * 6 <= 256 and sum(sizes) == 100
    assert facts_of(by_place.lm).largest == 256
    assert torch.allclose(states, trunk_states(by_place, 6)[0], atol=1e-5)


def test_without_batches_that_can_shrink_it_is_an_error(by_place):
    with (
        Lease(by_place) as lease,
        pytest.raises(PackTooLong, match="right up to 256 tokens; 600 were given"),
    ):
        grow_trunk(lease, read_prefix(lease, PREFIX), PROMPTS, room=0, head=False)
