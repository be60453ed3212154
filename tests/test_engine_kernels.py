"""The Triton kernels against torch's functions and the models' own code, and put back whole.

Without a GPU they run in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from kit.engine_samples import PREFIX, SAMPLES, engine_states
from kit.tiny import ARCHITECTURES, replaced, tiny_lm, tiny_tokenizer
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from anchorscope.engine import decode, lease
from anchorscope.engine.batches import Budget, ModelFacts, set_facts
from anchorscope.engine.check import checks
from anchorscope.engine.decode import read_prefix, write_answers
from anchorscope.engine.interventions import ANSWER_ONLY, Intervention
from anchorscope.engine.layout import PAD, ForkedCache, Layout, Rule
from anchorscope.models import Model, load_model

pytest.importorskip("triton")
IDS = torch.arange(3, 20)[None]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_norms_of_a_model_give_what_they_gave_and_are_put_back(architecture: str) -> None:
    from anchorscope.engine.kernels import install_norms

    lm = tiny_lm(architecture).eval()
    norms = [m for m in lm.modules() if type(m).__name__.endswith("RMSNorm")]
    with torch.no_grad():
        for norm in norms:
            torch.nn.init.normal_(norm.weight)
        plain = lm(IDS).logits
        restore = install_norms(lm)
        torch.testing.assert_close(lm(IDS).logits, plain)
    assert len(replaced(lm)) == len(norms)
    lm(IDS).logits.sum().backward()  # the own code, which has gradients
    assert next(lm.parameters()).grad is not None
    restore()
    assert not replaced(lm)


def test_a_norm_of_another_kind_is_left_alone() -> None:
    from anchorscope.engine.kernels import norm_adds_one

    class OddRMSNorm(torch.nn.RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 1.01

    with torch.no_grad():
        assert norm_adds_one(torch.nn.RMSNorm(8, eps=1e-6)) is False
        assert norm_adds_one(OddRMSNorm(8, eps=1e-6)) is None


@torch.no_grad()
def test_norm_is_torchs_for_rows_of_any_width_and_rounds_as_llamas_does() -> None:
    """In float16: Triton's interpreter truncates what it turns into bfloat16."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    from anchorscope.engine.kernels import normed

    for width in (16, 80, 3000):  # several narrow rows at once
        x, weight = torch.randn(1, 7, 3, width), torch.randn(width)
        own = normed(x, weight, 1e-6, more=False)
        torch.testing.assert_close(own, rms_norm(x, (width,), weight, 1e-6))
        more = normed(x, weight, 1e-6, more=True)
        torch.testing.assert_close(more, rms_norm(x, (width,), 1 + weight, 1e-6))
    norm = LlamaRMSNorm(64).to(torch.float16)
    norm.weight.copy_(torch.randn(64))
    x = torch.randn(5, 64).to(torch.float16)
    assert (normed(x, norm.weight, 1e-6, more=False) == norm(x)).float().mean() > 0.99


FRONT, MIDDLE, COUNTS = 5, 4, (3, 40)
LATE = 30  # a position that the longer row alone has: there the prefix is not seen whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(4, 2, 16), (6, 1, 64), (3, 3, 80)])
@torch.no_grad()
def test_attention_over_segments_is_torchs(
    dtype: torch.dtype, heads: int, key_heads: int, width: int
) -> None:
    """Two rows of unlike length behind a prefix and trunks that they share crosswise."""
    from anchorscope.engine.kernels import attend_segments

    tokens = sum(COUNTS)
    query = torch.randn(1, heads, tokens, width, dtype=dtype)
    key, value = torch.randn(2, 1, key_heads, tokens, width, dtype=dtype)
    front = torch.randn(2, 1, key_heads, FRONT, width, dtype=dtype)
    middle = torch.randn(2, 2, key_heads, MIDDLE, width, dtype=dtype)
    memory = partial(ForkedCache, [tuple(middle)], torch.tensor([1, 0]), [tuple(front)])
    begin = FRONT + MIDDLE
    lines = [range(begin, begin + count) for count in COUNTS]
    query_at = decode.pad_left(lines, PAD, torch.device("cpu"))
    key_at = torch.cat([torch.arange(FRONT, begin).expand(2, -1), query_at], dim=1)
    layout = Layout(query_at, key_at, prefix_length=FRONT)
    rule = Rule(lambda row, head, query, key: (key <= query) & ((query != LATE) | (key > 1)))
    bias = layout.bias(0, rule, dtype)
    in_rows = [layout.in_rows(part) for part in (query, key, value)]
    pair = memory().join(0, *in_rows[1:])
    own = scaled_dot_product_attention(in_rows[0], *pair, attn_mask=bias, enable_gqa=True)
    segments = memory(segmented=True).segments(0, layout, key, value)
    open_prefix = layout.open_prefix(0, rule, dtype)
    ours = attend_segments(query, segments, bias, open_prefix, layout, width**-0.5)
    close = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, layout.pack(own.transpose(1, 2)), rtol=close, atol=3 * close)


def test_likeliest_tokens_are_torchs() -> None:
    """Of a slice and of many blocks; some tie, and some cannot be chosen."""
    from anchorscope.engine.kernels import likeliest

    logits = 20 * torch.randn(5, 2, 10_000)[:, 1]  # rows that do not follow one another
    logits[1, [7, 8000]] = logits[1].max() + 1
    logits[2, ::2] = -torch.inf
    logits[3, 9_999] = 200.0  # the last one, and sure of it
    (chosen, *ours), (own, *theirs) = likeliest(logits), decode.likeliest(logits)
    assert torch.equal(chosen, own) and chosen[[1, 3]].tolist() == [7, 9_999]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def two_blocks() -> Model:
    """A Gemma of two blocks: the interpreter takes seconds for each."""
    lm = tiny_lm("gemma3")
    lm.model.layers, lm.config.num_hidden_layers = lm.model.layers[:2], 2
    return load_model(lm, tokenizer=tiny_tokenizer())


def test_the_engine_gives_the_same_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, and states under interventions, as a GPU would compute them."""
    from anchorscope.engine import kernels

    model, calls = two_blocks(), []
    samples = [replace(s, exact_answer=(s.answer_at,)) for s in SAMPLES[:2]]
    kinds = [ANSWER_ONLY, Intervention(name="heads", heads=((1, 0), (2, 3)))]

    def results() -> list[Any]:
        prompts = [s.ids[: s.answer_at] for s in samples]
        with lease.Lease(model) as leased:
            prefix, stop = read_prefix(leased, PREFIX), torch.tensor([-1])
            answers = write_answers(leased, prefix, prompts, stop_ids=stop, limit=2)
        states = [engine_states(model, samples, kind) for kind in kinds]
        return [answers.states, *states, torch.tensor([a.token_ids for a in answers.answers])]

    plain, kernel = results(), kernels.attend_segments
    monkeypatch.setattr(kernels, "install_norms", lambda lm: lambda: None)  # tested above
    monkeypatch.setattr(kernels, "attend_segments", lambda *a: calls.append(1) or kernel(*a))
    monkeypatch.setattr(lease, "can_fuse", lambda model: True)
    torch.testing.assert_close(results(), plain, rtol=1e-4, atol=1e-4)
    assert calls


def test_a_kernel_that_fails_a_check_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_blocks()
    set_facts(model.lm, ModelFacts(bounds=Budget(40)))  # no longer pack for the interpreter
    kernels = "anchorscope.engine.kernels"
    monkeypatch.setattr(f"{kernels}.install_norms", lambda lm: lambda: None)
    monkeypatch.setattr(f"{kernels}.attend_segments", lambda q, *others: q.transpose(1, 2) * 0.5)
    for place in (lease, checks):
        monkeypatch.setattr(place, "can_fuse", lambda model: True)
    assert lease.Lease(model).fused
    assert all(check.ok for check in checks.check_model(model))
    assert not lease.Lease(model).fused
