"""Faster products on a CPU: the same numbers to rounding, and all of it put back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kit.tiny import replaced

from anchorscope.engine import on_cpu
from anchorscope.engine.lease import Lease
from anchorscope.engine.on_cpu import weights_packed, without_onednn
from anchorscope.models import Model

IDS = torch.arange(3, 20)[None]


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with AMX; the functions are there on others, too, but not faster."""
    if not on_cpu._tried(torch.float32):
        pytest.skip("torch has no packed products here")
    monkeypatch.setattr(on_cpu, "packing_is_faster", lambda dtype: True)


def layers_of(model: Model) -> list[torch.nn.Linear]:
    inside = (m for block in model.parts.blocks for m in block.modules())
    return [m for m in inside if isinstance(m, torch.nn.Linear)]


@pytest.mark.usefixtures("packs")
def test_packed_weights_give_the_products_and_are_put_back(tiny: Model) -> None:
    with torch.no_grad():
        plain = tiny.lm(IDS).logits
        with weights_packed(tiny):
            assert all("forward" in layer.__dict__ for layer in layers_of(tiny))
            ours = tiny.lm(IDS).logits
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=0)
    assert not replaced(tiny.lm)


@pytest.mark.usefixtures("packs")
def test_a_weight_that_was_changed_is_packed_anew(tiny_llama: Model) -> None:
    (layer, *_) = layers_of(tiny_llama)
    with torch.no_grad(), weights_packed(tiny_llama):
        before = tiny_llama.lm(IDS).logits
        first = on_cpu._KNOWN[layer].weight
    with weights_packed(tiny_llama):
        assert on_cpu._KNOWN[layer].weight is first  # made once
    layer.weight.data[0, 0] += 1.0  # behind torch's back: no version is counted
    with torch.no_grad():
        plain = tiny_llama.lm(IDS).logits
        with weights_packed(tiny_llama):
            after = tiny_llama.lm(IDS).logits
    torch.testing.assert_close(after, plain, atol=1e-4, rtol=0)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.usefixtures("packs")
def test_with_gradients_packed_layers_run_their_own_code(tiny_llama: Model) -> None:
    with weights_packed(tiny_llama):
        tiny_llama.lm(IDS).logits.sum().backward()
    assert all(layer.weight.grad.abs().max() > 0 for layer in layers_of(tiny_llama))


@pytest.mark.usefixtures("packs")
def test_weights_are_not_copied_where_the_copy_would_be_large(
    tiny_llama: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(layer.weight.nbytes for layer in layers_of(tiny_llama))
    monkeypatch.setattr(on_cpu, "all_memory", lambda: 16 * size - 1)
    with weights_packed(tiny_llama):
        assert not replaced(tiny_llama.lm)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_who_packs_follows_from_processor_and_dtype(
    monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(on_cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(on_cpu, "_tried", lambda dtype: True)
    for amx in (True, False):
        monkeypatch.setattr(
            torch.cpu, "get_capabilities", lambda amx=amx: {"amx_bf16": amx}, raising=False
        )
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        on_cpu._suits_processor.cache_clear()
        assert on_cpu.packing_is_faster(torch.bfloat16) is (machine == "x86_64" and amx)
        assert not on_cpu.packing_is_faster(torch.float32)
    on_cpu._suits_processor.cache_clear()


@pytest.mark.parametrize(
    ("machine", "dtype", "bfloat16", "stays"),
    [
        ("aarch64", torch.float32, False, False),
        ("aarch64", torch.float32, True, True),
        ("aarch64", torch.bfloat16, False, True),
        ("x86_64", torch.float32, False, True),
    ],
)
def test_onednn_is_off_where_the_blas_is_faster(
    monkeypatch: pytest.MonkeyPatch, machine: str, dtype: torch.dtype, bfloat16: bool, stays: bool
) -> None:
    # On, as torch starts: it switches itself off after a bfloat16 product that it cannot make.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    monkeypatch.setattr(on_cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(on_cpu, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(on_cpu, "cpu_has_bfloat16", lambda: bfloat16)
    with without_onednn(dtype):
        assert torch.backends.mkldnn.enabled is stays
    assert torch.backends.mkldnn.enabled


@pytest.mark.usefixtures("packs")
def test_a_lease_has_the_fast_products_and_puts_them_back(tiny_llama: Model) -> None:
    with Lease(tiny_llama):
        assert set(replaced(tiny_llama.lm)) == {"Linear"}
    assert not replaced(tiny_llama.lm)
