"""A model spread over memory and disk: the same states, answers and fingerprint, bit for bit."""

from __future__ import annotations

import pytest
import torch
from kit.engine_samples import PREFIX, SAMPLES, engine_states
from kit.tiny import save_tiny, tiny_lm, tiny_tokenizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from anchorscope.engine.batches import Budget
from anchorscope.engine.check import check_model
from anchorscope.engine.decode import grow_trunk, read_prefix, write_answers
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import with_mass
from anchorscope.models import load_model
from anchorscope.models.load import read_spread, spread_out
from anchorscope.run_folder.identity import weights_hash

CUTS = {
    "clean": {"heads": ()},
    "knockout": {},
    "question": {"keys": "question"},
    "post": {"where": "post"},
    "single": {"layers": "single"},
    "window": {"layers": "window:2"},
    "heads": {"heads": ((1, 2), (3, 0), (4, 1))},
    "answer-only": {"answer_only": True},
}


def half(lm) -> int:
    """Bytes that hold about a half of the model."""
    return sum(p.numel() * p.element_size() for p in lm.parameters()) * 6 // 10


@pytest.fixture(params=["llama", "gemma3", "gpt_neox"])
def pair(request, tmp_path):
    """A tiny model undivided, and the same with blocks on disk."""
    lm = tiny_lm(request.param)
    lm.save_pretrained(tmp_path / "base")
    split = read_spread(str(tmp_path / "base"), memory={"cpu": half(lm)}, dtype=torch.float32)
    assert set(split.hf_device_map.values()) == {"cpu", "disk"}
    return [load_model(own, tokenizer=tiny_tokenizer()) for own in (lm, split.eval())]


def test_states_and_fingerprint_are_the_undivided_models_bit_for_bit(pair):
    whole, split = pair
    assert split.device == torch.device("cpu") and any(p.is_meta for p in split.lm.parameters())
    assert weights_hash(split.lm) == weights_hash(whole.lm)
    assert all(check.ok for check in check_model(split))
    for name, options in CUTS.items():
        cut = Intervention(name=name, **options)
        states = [engine_states(model, SAMPLES, cut) for model in (whole, split)]
        assert torch.equal(*states), name
        assert not states[0].isnan().any()


def test_answers_and_their_states_too(pair):
    prompts = [s.ids[: s.answer_at] for s in SAMPLES]
    written = []
    for model in pair:
        with Lease(model) as lease:
            front = read_prefix(lease, PREFIX)
            stop = torch.tensor([7, 9, 13])
            written.append(write_answers(lease, front, prompts, stop_ids=stop, limit=6))
    whole, split = written
    assert whole.answers == split.answers
    for line, one, other in zip(whole.answers, whole.states, split.states, strict=True):
        n = len(line.token_ids)
        assert torch.equal(one[:n], other[:n])


def test_a_model_in_memory_is_spread_in_the_same_way(tmp_path):
    """As after an adapter was merged."""
    whole = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    lm = spread_out(tiny_lm("llama"), memory={"cpu": half(whole.lm)})
    split = load_model(lm, tokenizer=tiny_tokenizer())
    assert set(lm.hf_device_map.values()) == {"cpu", "disk"} and "disk" in split.why
    assert weights_hash(lm) == weights_hash(whole.lm)
    assert all(check.ok for check in check_model(split))
    cut = Intervention(name="knockout")
    assert torch.equal(*(engine_states(model, SAMPLES, cut) for model in (whole, split)))


def test_balanced_is_a_device_by_name(tmp_path):
    save_tiny(tmp_path / "base")
    model = load_model(tmp_path / "base", device="balanced", dtype="float32")
    assert "spread over the devices as asked; float32 as asked; on " in model.why
    assert weights_hash(model.lm) == weights_hash(tiny_lm("llama"))


META = torch.device("meta")


class TwoDevices(TorchFunctionMode):
    """Lets no operation mix the two devices; what comes back from the one without values is 0."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        moves = func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], torch.device)
        if moves and args[0].is_meta and args[1] != META:
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        assert moves or len({t.device for t in tensors if t.dim()}) < 2, f"{func} mixes devices"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def divided():
    """A tiny model whose last two blocks and norm lie on another device than the rest."""
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    for module in [*model.parts.blocks[2:], model.lm.model.norm]:
        forward = module.to(META).forward

        def there(*args, forward=forward, **kwargs):
            moved = tree_map_only(torch.Tensor, lambda t: t.to(META), (args, kwargs))
            return forward(*moved[0], **moved[1])

        module.forward = there
    with TwoDevices():
        yield model


@pytest.mark.parametrize("name", CUTS)
def test_no_operation_mixes_two_devices(divided, name):
    """On every path of the engine; the states that are kept come to the first device."""
    states = engine_states(divided, SAMPLES, Intervention(name=name, **CUTS[name]))
    assert states.device == torch.device("cpu") and not states[:, :2].isnan().any()


def test_nor_while_decoding_nor_for_the_attention_mass(divided):
    prompts = [s.ids[: s.answer_at] for s in SAMPLES]
    with Lease(divided) as lease:
        front = read_prefix(lease, PREFIX)
        assert [key.device.type for key, _ in front.pairs or ()] == ["cpu", "cpu", "meta", "meta"]
        grown = grow_trunk(lease, front, prompts, room=3, head=True)
        assert grown.last.logits is not None and grown.last.logits.device.type == "cpu"
        grown.memory.keep(torch.tensor([0, 2]))
        write_answers(lease, front, prompts, stop_ids=torch.tensor([7]), limit=3)
        with_mass(lease, grown.trunk, SAMPLES, budget=Budget(64))
