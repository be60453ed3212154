"""Quantised and compiled models: read as they are, or refused in a sentence."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from kit.engine_samples import SAMPLES, engine_states
from kit.tiny import save_tiny, tiny_lm, tiny_tokenizer

from anchorscope.engine.check import check_model
from anchorscope.engine.interventions import Intervention
from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.run_folder.identity import weights_hash


def test_weights_in_eight_bits_are_read_as_they_are():
    """Those of torchao are tensors of another kind, which the fingerprint has to look into."""
    torchao = pytest.importorskip("torchao.quantization")
    rounded = []
    for seed in (0, 1):
        lm = tiny_lm("llama", seed)
        torchao.quantize_(lm, torchao.Int8WeightOnlyConfig())
        rounded.append(load_model(lm, tokenizer=tiny_tokenizer()))
    assert all(check.ok for check in check_model(rounded[0]))
    assert weights_hash(rounded[0].lm) != weights_hash(rounded[1].lm)
    plain = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    cut = Intervention(name="knockout")
    eight, full = (engine_states(model, SAMPLES, cut) for model in (rounded[0], plain))
    assert 1e-4 < (eight - full).abs().mean() / full.abs().mean() < 0.1


def test_activations_in_eight_bits_are_refused(monkeypatch):
    lm = tiny_lm("llama")
    monkeypatch.setattr(torch.backends.quantized, "engine", "onednn")  # on every processor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = torch.ao.quantization.quantize_dynamic(lm, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(UserError, match="rounds its activations"):
        load_model(lm, tokenizer=tiny_tokenizer())


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes"])
def test_a_missing_package_is_a_sentence(method, tmp_path):
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"could not be loaded: .*(requires|No GPU|needed)"):
        load_model(tmp_path, device="cpu")


def _whole(lm):
    lm.compile()


def _block(lm):
    lm.model.layers[1] = torch.compile(lm.model.layers[1])


def _forward(lm):
    lm.forward = torch.compile(lm.forward)


@pytest.mark.parametrize("compiled", [_whole, _block, _forward])
def test_a_compiled_part_is_refused(compiled):
    lm = tiny_lm("llama")
    compiled(lm)
    with pytest.raises(UserError, match=r"compiled, and their attention cannot be replaced"):
        load_model(lm, tokenizer=tiny_tokenizer())


def test_what_torch_compile_wraps_is_taken_out():
    lm = tiny_lm("llama")
    assert load_model(torch.compile(lm), tokenizer=tiny_tokenizer()).lm is lm
