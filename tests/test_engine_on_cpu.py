"""What makes a model faster on a CPU: the same bits, and all of it put back."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from kit.tiny import ARCHITECTURES, replaced, tiny_lm, tiny_tokenizer

from anchorscope.engine.decode import write_answers
from anchorscope.engine.layout import Layout
from anchorscope.engine.lease import Lease
from anchorscope.engine.memory import Growing
from anchorscope.engine.on_cpu import gates, products
from anchorscope.engine.on_cpu.gates import Buffers, gates_in_place
from anchorscope.engine.on_cpu.groups import attend_by_group, wins_by_group
from anchorscope.engine.on_cpu.products import wins_without_onednn, without_onednn
from anchorscope.engine.trunk import read_prefix
from anchorscope.models import Model, load_model

IDS = torch.arange(3, 20)[None]


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On, as torch starts: it switches itself off after a bfloat16 product that it cannot make."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_gates_in_buffers_give_the_same_bits(architecture: str, dtype: torch.dtype) -> None:
    lm = tiny_lm(architecture).to(dtype).eval()
    plain = [lm(IDS[:, :n]).logits for n in (17, 1, 9)]  # longer, then shorter rows
    with gates_in_place(lm):
        gated = len(replaced(lm))
        ours = [lm(IDS[:, :n]).logits for n in (17, 1, 9)]
    assert all(torch.equal(*pair) for pair in zip(ours, plain, strict=True))
    blocks = lm.config.get_text_config().num_hidden_layers
    assert gated == (0 if architecture == "gpt_neox" else blocks)
    assert not replaced(lm)


@pytest.mark.parametrize("depth", [None, 3])
def test_of_the_last_block_only_what_is_read_goes_through_its_mlp(depth, monkeypatch) -> None:
    """Two rows of nine tokens, of which two are read; the same states as with all of them."""
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer(), device="cpu", dtype="auto")
    at = torch.arange(9).expand(2, -1)
    ids = torch.stack([IDS[0, :9], IDS[0, 5:14]])
    sizes, products = [], gates._products
    monkeypatch.setattr(
        gates, "_products", lambda m, rows, b: sizes.append(len(rows)) or products(m, rows, b)
    )

    def read() -> list[torch.Tensor]:
        with Lease(model) as lease:
            sizes.clear()  # a first time each MLP is tried
            how = {"also_at": torch.tensor([4, 8]), "depth": depth, "head": depth is None}
            of = lease.run(ids, Layout(at, at, prefix_length=0), Growing(model.blocks, 9), **how)
        return [of.states, of.also, *([] if of.logits is None else [of.logits])]

    few, last = read(), depth or model.blocks
    assert sizes == [18] * (last - 1) + [4]  # the last tokens, and one more of each row
    monkeypatch.setattr(Lease, "_wanted", lambda lease: None)
    for one, other in zip(few, read(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    assert sizes == [18] * last


def test_with_gradients_the_own_code_runs() -> None:
    lm = tiny_lm("llama").eval()
    with gates_in_place(lm):
        lm(IDS).logits.sum().backward()
    mlp = lm.get_submodule("model.layers.0.mlp.gate_proj")
    assert mlp.weight.grad is not None and mlp.weight.grad.abs().max() > 0


def test_products_that_are_watched_or_have_a_bias_are_left_alone() -> None:
    lm = tiny_lm("llama").eval()
    first, second = (lm.get_submodule(f"model.layers.{n}.mlp") for n in (0, 1))
    seen = []
    first.up_proj.register_forward_hook(lambda *of: seen.append(of))
    second.gate_proj.bias = torch.nn.Parameter(torch.ones(second.gate_proj.out_features))
    with torch.no_grad(), gates_in_place(lm):
        assert not {first, second} & {m for m in lm.modules() if "forward" in m.__dict__}
        lm(IDS)
    assert len(seen) == 1


def test_a_model_is_let_go_of() -> None:
    lm = tiny_lm("llama").eval()
    with gates_in_place(lm):
        pass
    gone = weakref.ref(lm), weakref.ref(lm.get_submodule("model.layers.0.mlp"))
    del lm
    gc.collect()
    assert [of() for of in gone] == [None, None]


def test_buffers_grow_and_follow_the_dtype() -> None:
    buffers, like = Buffers(), torch.zeros(1)
    one, other = buffers.two(4, 3, like)
    assert one.shape == other.shape == (4, 3) and one.data_ptr() != other.data_ptr()
    assert buffers.two(2, 3, like)[0].data_ptr() == one.data_ptr()
    assert buffers.two(5, 3, like)[0].numel() == 15
    assert buffers.two(2, 3, like.bfloat16())[1].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("machine", "dtype", "bfloat16", "wins"),
    [
        ("aarch64", torch.float32, False, True),
        ("aarch64", torch.float32, True, False),
        ("aarch64", torch.bfloat16, False, False),
        ("x86_64", torch.float32, False, False),
    ],
)
def test_who_multiplies_follows_from_processor_and_dtype(
    monkeypatch: pytest.MonkeyPatch, machine: str, dtype: torch.dtype, bfloat16: bool, wins: bool
) -> None:
    monkeypatch.setattr(products.platform, "machine", lambda: machine)
    monkeypatch.setattr(products, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(products, "cpu_has_bfloat16", lambda: bfloat16)
    assert wins_without_onednn(dtype) is wins


@pytest.mark.usefixtures("onednn")
def test_onednn_is_off_until_the_last_of_several_threads_is_done() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_onednn():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with without_onednn():
        thread.start()
        assert inside.wait(30)
    assert not torch.backends.mkldnn.enabled  # the other thread multiplies still
    leave.set()
    thread.join()
    assert torch.backends.mkldnn.enabled
    with pytest.raises(RuntimeError, match="stop"), without_onednn():
        raise RuntimeError("stop")
    assert torch.backends.mkldnn.enabled


@pytest.mark.usefixtures("onednn")
def test_a_lease_has_all_of_it_and_puts_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anchorscope.engine.on_cpu.wins_without_onednn", lambda dtype: True)
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer(), device="cpu")
    with Lease(model):
        assert replaced(model.lm) and not torch.backends.mkldnn.enabled
    assert not replaced(model.lm) and torch.backends.mkldnn.enabled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 6])  # of the bias: one for all, or each its own
@pytest.mark.parametrize("steps", [1, 5])
def test_heads_that_share_keys_attend_together(dtype: torch.dtype, heads: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, steps, 6, 8, generator=generator).to(dtype).transpose(1, 2)
    pair = tuple(torch.randn(3, 2, 11, 8, generator=generator).to(dtype) for _ in range(2))
    gone = torch.rand(3, heads, steps, 11, generator=generator) < 0.3
    gone[..., 0] = False
    bias = torch.where(gone, -torch.inf, 0.0).to(dtype)
    ours = attend_by_group(query, (pair[0], pair[1]), bias, 0.3)
    key, value = (of.double().repeat_interleave(3, dim=1) for of in pair)
    scores = query.double() @ key.transpose(-1, -2) * 0.3 + bias.double()
    exact = torch.softmax(scores, dim=-1) @ value
    close = {"atol": 1e-6 if dtype == torch.float32 else 0.02, "rtol": 0.0}
    assert torch.allclose(ours.double(), exact, **close)


def test_heads_attend_together_in_bfloat16_on_some_processors_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = "anchorscope.engine.on_cpu.groups"
    monkeypatch.setattr(f"{here}._suits_processor", lambda: True)
    shape, half = (3, 9, 4, 8), torch.bfloat16
    assert wins_by_group(torch.empty(shape, dtype=half))
    assert not wins_by_group(torch.empty(3, 9, 1, 8, dtype=half))  # a step of decoding
    assert not wins_by_group(torch.empty(shape, dtype=torch.float32))
    assert not wins_by_group(torch.empty(shape, dtype=half, device="meta"))
    monkeypatch.setattr(f"{here}._suits_processor", lambda: False)
    assert not wins_by_group(torch.empty(shape, dtype=half))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_is_read_alike_whichever_way_its_heads_attend(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny_lm(architecture).double().eval()
    model = load_model(lm, tokenizer=tiny_tokenizer(), device="cpu", dtype="auto")
    apart = _written(model)
    monkeypatch.setattr("anchorscope.engine.attention.wins_by_group", lambda query: True)
    assert torch.allclose(_written(model), apart, rtol=0, atol=1e-9)


def _written(model: Model) -> torch.Tensor:
    """The states of answers to prompts of several lengths, which are padded."""
    with Lease(model) as lease:
        prefix = read_prefix(lease, range(3, 9))
        prompts = [[*range(3, 9), *range(20, 20 + more)] for more in (1, 4, 6)]
        stop = torch.tensor([10_000])
        return write_answers(lease, prefix, prompts, stop_ids=stop, limit=4).states
