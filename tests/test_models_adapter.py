"""A LoRA adapter: merged as by hand, named, part of the run's identity, refused with a sentence."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from kit.engine_samples import CLOSE, SAMPLES, cut_of, engine_states
from kit.plain import plain_states
from kit.tiny import save_tiny, tiny_lm, tiny_tokenizer
from safetensors.torch import load_file, save_file

from anchorscope.config import Config
from anchorscope.engine.interventions import KNOCKOUT, Intervention
from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.pipeline.request import command_of, resolve
from anchorscope.records import Question
from anchorscope.run_folder.identity import weights_hash

peft = pytest.importorskip("peft")
RANK, ALPHA = 3, 12
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture
def folders(tmp_path):
    """A base model and a LoRA adapter of it with random weights, none of them zero."""
    base, adapter = tmp_path / "base", tmp_path / "tuned"
    save_tiny(base)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS)
    model = peft.get_peft_model(tiny_lm("llama"), config)
    torch.manual_seed(5)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(adapter)
    return base, adapter


def by_hand(adapter):
    """The tiny model with W + scale·B·A in the place of every W the adapter names."""
    lm = tiny_lm("llama")
    change = load_file(adapter / "adapter_model.safetensors")
    weights = dict(lm.named_parameters())
    downs = [name for name in change if "lora_A" in name]
    assert len(downs) == len(TARGETS) * lm.config.num_hidden_layers
    for name in downs:
        own = name.removeprefix("base_model.model.").replace("lora_A.", "")
        with torch.no_grad():
            up = change[name.replace("lora_A", "lora_B")]
            weights[own] += ALPHA / RANK * up @ change[name]
    return load_model(lm, tokenizer=tiny_tokenizer())


def loaded(folders):
    base, adapter = folders
    return load_model(base, adapter=adapter, device="cpu", dtype="float32")


@pytest.mark.parametrize("heads", [(), None], ids=["clean", "knockout"])
def test_states_are_those_of_weights_merged_by_hand(folders, heads):
    cut = Intervention(name="cut", heads=heads)
    states = engine_states(loaded(folders), SAMPLES, cut)
    blocks = (lambda block: False) if heads == () else (lambda block: True)
    rows = [s.ids for s in SAMPLES]
    plain = plain_states(by_hand(folders[1]), rows, cut_of(SAMPLES, cut, blocks))
    torch.testing.assert_close(states, plain, **CLOSE)
    base = load_model(folders[0], device="cpu", dtype="float32")
    assert (engine_states(base, SAMPLES, cut) - states).abs().max() > 0.1


def test_it_is_a_plain_decoder_with_both_names_and_other_weights(folders):
    model, base = loaded(folders), load_model(folders[0], device="cpu", dtype="float32")
    assert (model.name, model.adapter) == ("base + tuned", str(folders[1]))
    assert model.source == str(folders[0])
    assert type(model.lm) is type(base.lm) and not model.lm.training
    assert [n for n, _ in model.lm.named_parameters()] == [n for n, _ in base.lm.named_parameters()]
    assert weights_hash(model.lm) == weights_hash(by_hand(folders[1]).lm) != weights_hash(base.lm)
    assert load_model(model) is model and load_model(model, adapter=folders[1]) is model


def test_the_adapter_is_part_of_what_a_run_is(folders):
    questions = [Question(id="made:q:0", dataset="made", text="Up?", answers=("sky",))]
    plain = resolve(str(folders[0]), questions, Config())
    named = resolve(str(folders[0]), questions, Config(adapter=str(folders[1])))
    config, _, identity = resolve(loaded(folders), questions, Config())
    assert plain[2]["adapter"] is None and plain[2] != identity
    assert identity == named[2] and identity["adapter"] == str(folders[1])
    assert f"--adapter {folders[1]}" in command_of(config, folders[0] / "run")


def test_the_doctor_proves_it(cli, folders):
    base, adapter = folders
    code, out, error = cli("doctor", "--model", base, "--adapter", adapter, "--device", "cpu")
    assert code == 0, error
    assert out.startswith("base + tuned:") and out.strip().endswith("this model can be run.")


def refused(folders, adapter):
    with pytest.raises(UserError) as error:
        load_model(folders[0], adapter=adapter, device="cpu", dtype="float32")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_adapter_that_is_not_there(folders, tmp_path):
    for place in (tmp_path / "nowhere", folders[0], "no-such-org/no-such-adapter"):
        assert f"The adapter '{place}' could not be merged into base" in refused(folders, place)


def test_an_adapter_of_another_model_or_with_weights_missing(folders, tmp_path):
    file = folders[1] / "adapter_model.safetensors"
    weights = load_file(file)
    last = sorted(weights)[-1]
    save_file({name: w for name, w in weights.items() if name != last}, file)
    assert "missing adapter keys" in refused(folders, folders[1])
    save_file({name: w[:, :2].contiguous() for name, w in weights.items()}, file)
    assert "size mismatch" in refused(folders, folders[1])
    described = json.loads((folders[1] / "adapter_config.json").read_text())
    described["target_modules"] = ["no_such_part"]
    (folders[1] / "adapter_config.json").write_text(json.dumps(described))
    assert "no_such_part" in refused(folders, folders[1])


def test_an_adapter_that_changes_no_weights(folders, tmp_path):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    peft.get_peft_model(tiny_lm("llama"), config).save_pretrained(tmp_path / "soft")
    assert "PROMPT_TUNING adds tokens and changes no weights" in refused(folders, tmp_path / "soft")


def test_a_loaded_model_stays_as_it_is(folders):
    with pytest.raises(UserError, match="beside a loaded model"):
        load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer(), adapter=folders[1])


def test_a_peft_model_is_read_with_its_adapter(folders):
    both = peft.PeftModel.from_pretrained(tiny_lm("llama"), folders[1]).eval()
    inside = engine_states(load_model(both, tokenizer=tiny_tokenizer()), SAMPLES, KNOCKOUT)
    merged = load_model(both.merge_and_unload(), tokenizer=tiny_tokenizer())
    torch.testing.assert_close(inside, engine_states(merged, SAMPLES, KNOCKOUT), **CLOSE)
    bare = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    assert not torch.allclose(inside, engine_states(bare, SAMPLES, KNOCKOUT), atol=1e-3)


def test_without_peft_it_is_one_sentence(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "pip install 'anchorscope[adapters]'" in refused(folders, folders[1])
