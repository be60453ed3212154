"""The proof on load: each way to be wrong is seen, and what was proved is not proved again."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from kit.architectures import build
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine import attention, layout, read
from anchorscope.engine.batches import (
    Budget,
    ModelFacts,
    PackTooLong,
    facts_of,
    in_batches,
    set_facts,
)
from anchorscope.engine.check import Check, check_model, checks, require_understood, stock
from anchorscope.engine.check.checks import can_be_float32, in_float32
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.layout import Edges, Layout
from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError
from anchorscope.models import Model, load_model

ANSWERS = "answers and clean states are those of stock attention"
CUTS = "the knockout blocks what it says and nothing else"
HEADS = "a knockout in some heads"
WINDOWS = ("a knockout in one block", "a knockout in a window of blocks")
POST = "a knockout after the softmax"


@pytest.fixture(autouse=True)
def proofs(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a process that has proved nothing."""
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(checks, "_PROVED", {})
    return tmp_path / "proofs"


def tiny_model(dtype: torch.dtype = torch.float32) -> Model:
    return load_model(tiny_lm("llama").to(dtype), tokenizer=tiny_tokenizer())


def failed(model: Model) -> set[str]:
    return {check.name for check in check_model(model) if not check.ok}


def test_every_architecture_is_understood(tiny):
    checks = list(check_model(tiny))
    assert len(checks) >= 15
    assert all(check.ok for check in checks), checks


# --- Faults of the engine: each is seen by the checks of what it breaks ---


def without_masks(own):
    return lambda *qkv, attn_mask, **options: own(
        *qkv, attn_mask=torch.zeros_like(attn_mask), **options
    )


def rows_mixed_up(own):
    def init(self, trunk, rows, prefix=None, **options):
        own(self, trunk, rows.flip(0), prefix, **options)

    return init


def rows_mixed_up_while_decoding(own):
    return lambda self: own(self).roll(1) if self.query_at.shape[1] == 1 else own(self)


def another_head(own):
    return lambda *given: None if (cut := own(*given)) is None else cut.roll(1, dims=2)


def boost_turned(own):
    def added(*given):
        boost = own(*given)
        return None if boost is None else torch.where(boost.isinf(), boost, -boost)

    return added


def no_edge_gone(own):
    return lambda self, block, post: torch.zeros(1, 1, 1, 1).bool()


def tokens_alike(own):
    """As if a token's states followed from itself and its position alone."""
    return lambda table, *parts: hash(parts[-2:])


FAULTS = {
    "masks": (attention, "scaled_dot_product_attention", without_masks, {CUTS, *WINDOWS, HEADS}),
    "rows": (layout.ForkedCache, "__init__", rows_mixed_up, {CUTS, *WINDOWS, HEADS, POST}),
    "decoding": (Layout, "last", rows_mixed_up_while_decoding, {ANSWERS}),
    "reach": (Edges, "gone", no_edge_gone,
              {CUTS, *WINDOWS, HEADS, POST, "blocked edges carry no weight"}),
    "distinct": (layout, "_number", tokens_alike, {ANSWERS, CUTS}),
}  # fmt: skip
FAULTS_OF_ONE = {
    "head": (read, "_heads", another_head, {HEADS}),
    "windows": (attention.WindowSlots, "begin", lambda own: lambda self, block, x: x, set(WINDOWS)),
    "post": (Layout, "kept", lambda own: lambda self, block, dtype: None, {POST}),
    "boost": (read, "_added", boost_turned, {"edges reweighted before the softmax"}),
}


@pytest.mark.parametrize("fault", [*FAULTS, *FAULTS_OF_ONE])
def test_each_fault_of_the_engine_is_seen(tiny_llama, monkeypatch, fault):
    place, name, make, expected = (FAULTS | FAULTS_OF_ONE)[fault]
    monkeypatch.setattr(place, name, make(getattr(place, name)))
    seen = failed(tiny_llama)
    assert seen == expected if fault in FAULTS_OF_ONE else seen >= expected
    if fault == "reach":
        with pytest.raises(UserError, match="is not understood, so its numbers would mean nothing"):
            require_understood(tiny_llama)


def test_a_check_without_power_says_so(tiny_llama, monkeypatch):
    monkeypatch.setitem(stock._TOLERANCE, torch.float32, 0.5)
    seen = [check for check in check_model(tiny_llama) if not check.ok]
    assert seen
    assert all("the check has no power" in check.seen for check in seen)


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


# --- Half precision ---


def test_in_half_precision_the_models_own_rounding_sets_the_limit(monkeypatch):
    """Large activations round further than any fixed number allows; a lost cut is still seen."""
    model = tiny_model(torch.bfloat16)
    monkeypatch.setitem(stock._TOLERANCE, torch.bfloat16, 1e-9)
    assert CUTS not in failed(model)
    monkeypatch.setattr(Edges, "gone", no_edge_gone(None))
    assert CUTS in failed(model)


def test_the_way_to_float32_and_back_loses_nothing():
    model = tiny_model(torch.bfloat16)
    assert can_be_float32(model) and not can_be_float32(tiny_model())
    before = {name: weight.clone() for name, weight in model.lm.state_dict().items()}
    with in_float32(model):
        assert model.dtype == torch.float32
        assert all(weight.dtype == torch.float32 for weight in model.lm.parameters())
    after = model.lm.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.dtype == torch.bfloat16


def test_a_check_without_power_in_half_precision_is_made_in_float32(monkeypatch):
    model = tiny_model(torch.bfloat16)
    monkeypatch.setitem(stock._TOLERANCE, torch.bfloat16, 0.5)  # as if rounding hid everything
    seen = list(check_model(model))
    assert all(check.ok for check in seen)
    assert any("in float32 on the same weights" in check.seen for check in seen)
    monkeypatch.setattr(Layout, "kept", lambda self, block, dtype: None)
    assert failed(model) >= {POST}  # a fault is not excused by rounding


# --- Packs in which a model looks at places ---


@pytest.fixture
def by_place(monkeypatch):
    """Llama as a model that scales its inputs by their place in a pack, from the 300th on."""
    kind = type(tiny_lm("llama").model.layers[0].self_attn)
    forward = kind.forward

    @functools.wraps(forward)
    def scaled(self, hidden_states, *args, **kwargs):
        scale = 1.0 + (torch.arange(hidden_states.shape[1]) >= 300)
        return forward(self, hidden_states * scale[None, :, None], *args, **kwargs)

    return lambda: monkeypatch.setattr(kind, "forward", scaled)


def test_a_model_that_looks_at_places_in_a_pack_is_kept_to_smaller_packs(tiny_llama, by_place):
    by_place()
    require_understood(tiny_llama)
    assert facts_of(tiny_llama.lm).largest == 256 == Budget.of(tiny_llama).tokens
    again = tiny_model()
    require_understood(again)  # proved already, and bound all the same
    assert Budget.of(again).tokens == 256


PREFIX = (10, 11, 12, 13)
PROMPTS = [(*PREFIX, 20 + n, 120 + n, 40, 50 + n, 60, 70 + n) for n in range(100)]


def test_a_longer_pack_is_tried_once_and_its_rows_are_read_in_smaller_ones_if_wrong(by_place):
    model = tiny_model()
    set_facts(model.lm, ModelFacts(bounds=Budget(128)))
    require_understood(model)
    assert facts_of(model.lm).proved == 128
    states, sizes = torch.empty(2, len(PROMPTS), model.blocks, model.parts.width), []
    with Lease(model) as lease:
        prefix = read_prefix(lease, PREFIX)

        def work(rows: list[int]) -> torch.Tensor:
            prompts = [PROMPTS[n] for n in rows]
            return grow_trunk(lease, prefix, prompts).last.states

        work([*range(40)])
        assert facts_of(model.lm).proved == 256  # 240 tokens, none alike
        require_understood(model)  # asked for again: what was tried since is kept
        assert facts_of(model.lm).proved == 256
        by_place()
        for number, tokens in enumerate((1024, 6)):
            for batch, last in in_batches(
                range(100), work, length=lambda n: 6, then=lambda n: n, budget=Budget(tokens)
            ):
                states[number, batch] = last
                sizes.append(len(batch))
        assert max(sizes) * 6 <= 256 and sum(sizes) == 200
        assert facts_of(model.lm).largest == 256
        assert torch.allclose(*states, atol=1e-5)
        with pytest.raises(PackTooLong, match="right up to 256 tokens; 600 were given"):
            work([*range(100)])


def test_prompts_longer_than_any_pack_of_the_checks_are_tried_when_they_come():
    """Llama-4 scales queries by their place in the pack, from a length on that none tried."""
    lm = build("llama4_text")
    for layer in lm.model.layers:
        layer.self_attn.floor_scale, layer.self_attn.use_rope = 1600.0, False
        layer.self_attn.attn_temperature_tuning = True
    model = load_model(lm, tokenizer=tiny_tokenizer())
    set_facts(lm, ModelFacts(bounds=Budget(1024)))
    assert not failed(model)
    assert facts_of(lm).proved == 1024 and facts_of(lm).largest is None

    def states(length: int) -> torch.Tensor:
        ids = tuple(10 + n % 200 for n in range(length))
        with Lease(model) as lease:
            prefix = read_prefix(lease, ids[:-3])
            return grow_trunk(lease, prefix, [ids]).last.states

    assert not states(1400).isnan().any()
    assert facts_of(lm).proved == 1400  # 2,048 would have been wrong
    with pytest.raises(UserError, match="right up to 1400 tokens; 1800 were given"):
        states(1803)


# --- The proof on disk ---


def proved_again(model: Model, monkeypatch) -> bool:
    """Whether the checks are made, in a process that starts with what is on disk."""
    made: list[Model] = []

    def noted(given: Model):
        made.append(given)
        yield Check("as if proved", True, "")

    with monkeypatch.context() as patch:
        patch.setattr(checks, "_PROVED", {})
        patch.setattr(checks, "check_model", noted)
        require_understood(model)
    return bool(made)


def test_a_second_process_takes_the_proof_of_the_same_model_from_disk(proofs, monkeypatch):
    first, other, scaled = tiny_model(), tiny_model(), tiny_model()
    set_facts(first.lm, ModelFacts(proved=640, rounding=1e-4, largest=640))
    assert proved_again(first, monkeypatch)
    (file,) = proofs.iterdir()
    second = tiny_model()
    assert not proved_again(second, monkeypatch)
    assert facts_of(first.lm) == facts_of(second.lm)
    with torch.no_grad():
        next(other.lm.parameters()).view(-1)[0] += 1
    scaled.lm.config.rms_norm_eps *= 2
    assert proved_again(other, monkeypatch) and proved_again(scaled, monkeypatch)
    places = ((checks, "_versions_and_source"), (checks.platform, "machine"))
    for place, name in places:  # another source of the engine, another processor
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda: "other")
            assert proved_again(tiny_model(), monkeypatch)
    assert not proved_again(tiny_model(), monkeypatch)
    file.write_text('{"tokens": "many"}', encoding="utf-8")
    assert proved_again(tiny_model(), monkeypatch)  # a damaged proof counts for nothing


def test_doctor_always_proves(cli, tmp_path):
    model = tiny_model()
    require_understood(model)
    model.lm.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    code, printed, _ = cli("doctor", "--model", str(tmp_path / "model"))
    assert code == 0 and "the knockout blocks what it says" in printed
