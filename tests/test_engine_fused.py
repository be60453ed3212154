"""Fused kernels against the models' own code and torch's attention, and put back whole.

The kernels are Triton's. Without a GPU they run in its interpreter, where Triton is installed.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import torch
from kit.tiny import ARCHITECTURES, tiny_lm, tiny_tokenizer

from anchorscope.engine import lease
from anchorscope.engine.check import checks
from anchorscope.engine.check import trial as tries
from anchorscope.engine.decode import read_prefix
from anchorscope.engine.fused import (
    agree,
    attention_agrees,
    choice_agrees,
    fused_norm,
    install_kernels,
)
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import ANSWER_ONLY
from anchorscope.models import Model, load_model

triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
IDS = torch.arange(3, 20)[None]


@triton
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_a_fused_norm_is_the_models_own(architecture: str) -> None:
    lm = tiny_lm(architecture)
    modules = [m for m in lm.modules() if type(m).__name__.endswith("RMSNorm")]
    for module in modules:
        torch.nn.init.normal_(module.weight)
        fused, x = fused_norm(module), torch.randn(1, 5, len(module.weight))
        assert fused is not None
        torch.testing.assert_close(fused(x), module(x))


@triton
def test_a_norm_of_another_kind_is_left_alone() -> None:
    class OddRMSNorm(torch.nn.RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 1.01

    assert fused_norm(torch.nn.RMSNorm(8, eps=1e-6)) is not None
    assert fused_norm(OddRMSNorm(8, eps=1e-6)) is None
    assert fused_norm(torch.nn.LayerNorm(8)) is None


def test_agreement_allows_rounding_alone() -> None:
    x = torch.randn(4, 64).to(torch.bfloat16)
    assert agree(lambda x: x / 3, lambda x: (x.float() / 3).to(x.dtype), x)
    assert not agree(lambda x: x / 3, lambda x: x / 2.8, x)
    assert not agree(lambda x: x, lambda x: x.float(), x)


@triton
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fused_model_gives_what_it_gave(architecture: str) -> None:
    lm = tiny_lm(architecture).eval()
    with torch.no_grad():
        plain = lm(IDS).logits
        restore = install_kernels(lm)
        fused = [m for m in lm.modules() if "forward" in m.__dict__]
        torch.testing.assert_close(lm(IDS).logits, plain)
    assert fused
    lm(IDS).logits.sum().backward()  # the own code, which has gradients
    assert next(lm.parameters()).grad is not None
    restore()
    assert not any("forward" in m.__dict__ for m in lm.modules())


@triton
def test_the_kernels_of_a_llama_are_all_in_use() -> None:
    lm = tiny_lm("llama").eval()
    restore = install_kernels(lm)
    kinds = {type(m).__name__ for m in lm.modules() if "forward" in m.__dict__}
    restore()
    assert kinds == {"LlamaRMSNorm", "LlamaMLP", "LlamaAttention"}


@triton
def test_a_model_that_had_kernels_is_let_go_of() -> None:
    lm = tiny_lm("llama").eval()
    install_kernels(lm)()
    gone = [weakref.ref(of) for of in (lm, lm.get_submodule("model.layers.0.mlp"))]
    del lm
    gc.collect()
    assert [of() for of in gone] == [None, None]


@triton
@torch.no_grad()
def test_kernels_against_torch() -> None:
    from torch.nn.functional import gelu, silu
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from anchorscope.engine.kernels import gated, rotated

    gate, up = 3 * torch.randn(7, 333), torch.randn(7, 333)
    torch.testing.assert_close(gated(gate, up, "silu"), silu(gate) * up)
    torch.testing.assert_close(gated(gate, up, "gelu"), gelu(gate, approximate="tanh") * up)
    query, key = torch.randn(1, 3, 5, 12), torch.randn(1, 1, 5, 12)
    cos, sin = torch.randn(1, 5, 12), torch.randn(1, 5, 12)
    own = apply_rotary_pos_emb(query, key, cos, sin)
    torch.testing.assert_close(rotated(query, key, cos, sin), own)


@triton
@torch.no_grad()
def test_kernels_round_where_the_models_own_code_does() -> None:
    """Qwen2.5 has keys of hundreds: with one rounding less they give another attention.

    In float16: Triton's interpreter truncates what it turns into bfloat16.
    """
    from torch.nn.functional import silu
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

    from anchorscope.engine.kernels import gated, normed, rotated

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(torch.float16)

    query, key, cos, sin = (
        300 * half(1, 3, 5, 64),
        half(1, 1, 5, 64),
        half(1, 5, 64),
        half(1, 5, 64),
    )
    own = apply_rotary_pos_emb(query, key, cos, sin)
    assert all(map(torch.equal, rotated(query, key, cos, sin), own))
    gate, up = half(7, 333), half(7, 333)
    assert (gated(gate, up, "silu") == silu(gate) * up).float().mean() > 0.999
    norm = LlamaRMSNorm(64).to(torch.float16)
    norm.weight.copy_(half(64))
    x = half(5, 64)
    assert (normed(x, norm.weight, 1e-6, more=False) == norm(x)).float().mean() > 0.99


@triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(4, 2, 16), (6, 1, 64), (3, 3, 80)])
def test_attention_over_segments_is_torchs(
    dtype: torch.dtype, heads: int, key_heads: int, width: int
) -> None:
    assert attention_agrees(torch.zeros((), dtype=dtype), heads, key_heads, width)


@triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_likeliest_token_is_torchs(dtype: torch.dtype) -> None:
    assert choice_agrees(torch.zeros((), dtype=dtype))


@triton
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float64])
def test_the_trial_does_not_depend_on_the_default_dtype(other: torch.dtype) -> None:
    """Transformers sets another one for the whole process while it makes a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(other)
    try:
        like = torch.zeros((), dtype=torch.float32)
        assert attention_agrees(like, 4, 2, 16)
        assert choice_agrees(like)
    finally:
        torch.set_default_dtype(before)


@triton
def test_the_likeliest_token_of_a_slice_and_of_many_blocks() -> None:
    from anchorscope.engine.fused import likeliest as torchs
    from anchorscope.engine.kernels import likeliest

    logits = 20 * torch.randn(5, 2, 10_000)[:, 1]  # rows that do not follow one another
    logits[3, 9_999] = 200.0  # the last one, and sure of it
    (chosen, *ours), (own, *theirs) = likeliest(logits), torchs(logits)
    assert torch.equal(chosen, own) and chosen[3] == 9_999
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@triton
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_engine_gives_the_same_with_the_kernels(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, and states under interventions, as a GPU would compute them; few: interpreted."""
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer())
    every = tries.interventions(model)
    kinds = [k for k in every if k.name in ("knockout", "heads", "boost")]
    plain, plain_answers = _states(model, kinds)
    from anchorscope.engine import kernels

    calls = []
    kernel = kernels.attend_segments
    monkeypatch.setattr(kernels, "attend_segments", lambda *a: calls.append(1) or kernel(*a))
    monkeypatch.setattr(lease, "can_fuse", lambda model: True)
    fused, answers = _states(model, kinds)
    assert calls and answers == plain_answers
    for name, states in plain.items():
        torch.testing.assert_close(fused[name], states, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@triton
def test_a_kernel_that_fails_a_check_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from anchorscope.engine import kernels

    lm = tiny_lm("llama")
    lm.model.layers = lm.model.layers[:2]  # the interpreter takes a minute for each
    lm.config.num_hidden_layers = 2
    model = load_model(lm, tokenizer=tiny_tokenizer())
    kernel = kernels.attend_segments
    monkeypatch.setattr(kernels, "attend_segments", lambda *a: kernel(*a) * 1.5)
    for place in (lease, checks):
        monkeypatch.setattr(place, "can_fuse", lambda model: True)
    assert lease.Lease(model).fused
    assert all(check.ok for check in checks.check_model(model))
    assert not lease.Lease(model).fused


def _states(
    model: Model, kinds: Sequence[Intervention]
) -> tuple[dict[str, torch.Tensor], list[tuple[int, ...]]]:
    """States [sample, layer, width] by intervention, and the answers' tokens."""
    prompts = tries.prompts_for(model)
    with lease.Lease(model) as lent:
        prefix = read_prefix(lent, prompts[0][: tries.PREFIX])
        tried = tries.answer_prompts(lent, prefix, prompts)
        states = tries.engine_states(
            lent, tried.written.trunk, tried.samples, (*kinds, ANSWER_ONLY)
        )
    return states, [line.token_ids for line in tried.written.answers]


@triton
@torch.no_grad()
def test_a_norm_over_narrow_rows_takes_several_at_once() -> None:
    from torch.nn.functional import rms_norm

    from anchorscope.engine.kernels import normed

    for width in (16, 80, 3000):
        x, weight = torch.randn(1, 7, 3, width), torch.randn(width)
        own = normed(x, weight, 1e-6, more=False)
        torch.testing.assert_close(own, rms_norm(x, (width,), weight, 1e-6))
        more = normed(x, weight, 1e-6, more=True)
        torch.testing.assert_close(more, rms_norm(x, (width,), 1 + weight, 1e-6))
