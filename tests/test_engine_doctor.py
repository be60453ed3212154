"""The doctor proves what a run does: each way to be wrong is tried, and seen."""

from __future__ import annotations

import functools

import pytest
import torch
from kit.architectures import build
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine import attention, kv_cache, rows
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import check_model, require_understood, stock
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.layout import Layout
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits import Bounds, ModelFacts, facts_of, set_facts
from anchorscope.errors import UserError
from anchorscope.models import load_model

CUTS = "the knockout blocks what it says and nothing else"
HEADS = "a knockout in some heads"
WINDOWS = ("a knockout in one block", "a knockout in a window of blocks")
POST = "a knockout after the softmax"


@pytest.fixture(autouse=True)
def _nothing_proved(monkeypatch):
    monkeypatch.setattr("anchorscope.engine.check.checks._PROVED", {})
    monkeypatch.setattr("anchorscope.engine.check.checks.load_proof", lambda *_: None)


def failed(model) -> set[str]:
    return {check.name for check in check_model(model) if not check.ok}


def test_every_architecture_is_understood(tiny):
    checks = list(check_model(tiny))
    assert len(checks) >= 15
    assert all(check.ok for check in checks), checks


def test_fused_attention_without_its_masks(tiny_llama, monkeypatch):
    fused = attention.scaled_dot_product_attention

    def unmasked(query, key, value, attn_mask=None, **options):
        return fused(query, key, value, attn_mask=torch.zeros_like(attn_mask), **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", unmasked)
    assert {CUTS, *WINDOWS, HEADS} < failed(tiny_llama)


def test_rows_of_a_batch_mixed_up(tiny_llama, monkeypatch):
    begin = kv_cache.ForkedCache.__init__

    def mixed(self, trunk, rows, prefix=None, **how):
        begin(self, trunk, rows.flip(0), prefix, **how)

    monkeypatch.setattr(kv_cache.ForkedCache, "__init__", mixed)
    assert {CUTS, *WINDOWS, HEADS, POST} <= failed(tiny_llama)


def test_rows_mixed_up_while_decoding(tiny_llama, monkeypatch):
    last = Layout.last
    monkeypatch.setattr(
        Layout,
        "last",
        lambda self: last(self).roll(1) if self.query_at.shape[1] == 1 else last(self),
    )
    assert "answers and clean states are those of stock attention" in failed(tiny_llama)


def test_the_wrong_head_cut(tiny_llama, monkeypatch):
    heads = rows._heads

    def other(lease, batch):
        cut = heads(lease, batch)
        return None if cut is None else cut.roll(1, dims=2)

    monkeypatch.setattr(rows, "_heads", other)
    assert failed(tiny_llama) == {HEADS}


def test_windows_never_set_back(tiny_llama, monkeypatch):
    monkeypatch.setattr(attention.WindowSlots, "begin", lambda self, block, hidden: hidden)
    assert failed(tiny_llama) == set(WINDOWS)


def test_post_that_does_nothing(tiny_llama, monkeypatch):
    monkeypatch.setattr(Layout, "kept", lambda self, block, dtype: None)
    assert failed(tiny_llama) == {POST}


def test_a_boost_with_the_wrong_sign(tiny_llama, monkeypatch):
    added = rows._added

    def turned(batch, device):
        boost = added(batch, device)
        return None if boost is None else torch.where(boost.isinf(), boost, -boost)

    monkeypatch.setattr(rows, "_added", turned)
    assert failed(tiny_llama) == {"edges reweighted before the softmax"}


def test_a_knockout_that_does_not_reach(tiny_llama, monkeypatch):
    monkeypatch.setattr(
        "anchorscope.engine.layout._gone", lambda e, b, r: torch.zeros(1, 1, 1, 1).bool()
    )
    assert {CUTS, *WINDOWS, HEADS, POST, "blocked edges carry no weight"} <= failed(tiny_llama)
    with pytest.raises(UserError, match="is not understood, so its numbers would mean nothing"):
        require_understood(tiny_llama)


def test_a_check_without_power_says_so(tiny_llama, monkeypatch):
    monkeypatch.setitem(stock._TOLERANCE, torch.float32, 0.5)
    seen = [check for check in check_model(tiny_llama) if not check.ok]
    assert seen
    assert all("the check has no power" in check.seen for check in seen)


def test_a_model_that_looks_at_places_in_a_pack_is_kept_to_smaller_packs(tiny_llama, monkeypatch):
    """Like one that scales its queries by their place beyond a certain one."""
    kind = type(tiny_llama.parts.attentions[0])
    forward = kind.forward

    @functools.wraps(forward)
    def by_place(self, hidden_states, *args, **kwargs):
        scale = 1.0 + (torch.arange(hidden_states.shape[1]) >= 300)
        return forward(self, hidden_states * scale[None, :, None], *args, **kwargs)

    monkeypatch.setattr(kind, "forward", by_place)
    assert not failed(tiny_llama)
    assert facts_of(tiny_llama.lm).largest == 256 == Budget.of(tiny_llama).tokens
    require_understood(tiny_llama)
    again = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    require_understood(again)  # proved already, and bound all the same
    assert Budget.of(again).tokens == 256


def test_prompts_longer_than_any_pack_of_the_checks_are_tried_when_they_come():
    """Llama-4 scales queries by their place in the pack, from a length on that none tried."""
    lm = build("llama4_text")
    for layer in lm.model.layers:
        layer.self_attn.floor_scale, layer.self_attn.use_rope = 1600.0, False
        layer.self_attn.attn_temperature_tuning = True
    model = load_model(lm, tokenizer=tiny_tokenizer())
    set_facts(lm, ModelFacts(bounds=Bounds(1024, None)))
    assert not failed(model)
    assert facts_of(lm).pack_proof.tokens == 1024 and facts_of(lm).largest is None

    def states(length: int) -> torch.Tensor:
        ids = tuple(10 + n % 200 for n in range(length))
        with Lease(model) as lease:
            prefix = read_prefix(lease, ids[:-3])
            return grow_trunk(lease, prefix, [ids], room=0, head=False).last.states

    assert not states(1400).isnan().any()
    assert facts_of(lm).pack_proof.tokens == 1400  # 2,048 would have been wrong
    with pytest.raises(UserError, match="right up to 1400 tokens; 1800 were given"):
        states(1803)


def test_a_model_that_looks_at_no_places_reads_prompts_of_any_length(tiny_llama):
    set_facts(tiny_llama.lm, ModelFacts(bounds=Bounds(1024, None)))
    require_understood(tiny_llama)
    ids = tuple(10 + n % 200 for n in range(1500))
    with Lease(tiny_llama) as lease:
        read_prefix(lease, ids)
    assert facts_of(tiny_llama.lm).pack_proof.tokens == 2048


def test_an_attention_that_is_not_ours_is_refused(tiny_llama, monkeypatch):
    """One block that goes around us is enough: nothing could be cut in it."""
    block = tiny_llama.parts.blocks[2]
    monkeypatch.setattr(
        block.self_attn, "forward", lambda hidden_states, **kwargs: (hidden_states, None)
    )
    (_, check) = check_model(tiny_llama)
    assert not check.ok
    assert "information flows around the attention layers: blocks 3" in check.seen


def test_any_error_is_an_answer_and_not_a_traceback(tiny_llama, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(tiny_llama.parts.blocks[0].mlp, "forward", broken)
    (_, check) = check_model(tiny_llama)
    assert not check.ok
    assert check.seen == "ZeroDivisionError: deep inside"


def test_in_half_precision_the_model_s_own_rounding_sets_the_limit(monkeypatch):
    """Large activations round further than any fixed number allows; a lost cut is still seen."""
    model = load_model(tiny_lm("llama").to(torch.bfloat16), tokenizer=tiny_tokenizer())
    monkeypatch.setitem(stock._TOLERANCE, torch.bfloat16, 1e-9)
    assert CUTS not in failed(model)
    monkeypatch.setattr(
        "anchorscope.engine.layout._gone", lambda e, b, r: torch.zeros(1, 1, 1, 1).bool()
    )
    assert CUTS in failed(model)
