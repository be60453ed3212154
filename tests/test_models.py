"""Models by every name, and the error when one cannot be had."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kit.tiny import save_tiny, tiny_lm, tiny_tokenizer
from transformers import AutoModel, GPT2Config

from anchorscope.errors import UserError
from anchorscope.models import load, load_model
from anchorscope.models.load import Choice, choose, cpu_has_bfloat16
from anchorscope.models.prompts import has_chat, make_prompt, stop_ids
from anchorscope.records import Shot

SHOTS = (Shot(question="What is up?", answer="The sky"), Shot(question="Down?", answer="Earth"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "tiny-llama"
    save_tiny(path)
    return path


def test_a_folder_and_a_loaded_model_are_the_same(folder):
    from_folder = load_model(folder, device="cpu", dtype="float32")
    from_object = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    assert from_folder.name == "tiny-llama"
    assert (from_folder.blocks, from_folder.parts.width) == (4, 48)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(from_folder.lm(ids).logits, from_object.lm(ids).logits)
    assert load_model(from_object) is from_object


def test_dtype_and_device_are_chosen_by_the_machine_with_a_reason(folder):
    choice = choose("cpu", "auto")
    assert choice.dtype == (torch.bfloat16 if cpu_has_bfloat16() else torch.float32)
    assert "bfloat16 instructions" in choice.why
    assert load_model(folder, device="cpu", dtype="float16").dtype == torch.float16
    assert "float16 as asked" in load_model(folder, device="cpu", dtype="float16").why


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("./nowhere", "'./nowhere' is neither a model folder nor a .gguf file. Accepted: a hub id"),
        ("nowhere.gguf", "There is no file nowhere.gguf. Give the path of a .gguf file."),
        ("no-such-org/no-such-model", "The model 'no-such-org/no-such-model' could not be loaded"),
    ],
)
def test_an_unknown_model_is_one_sentence(given, message):
    with pytest.raises(UserError) as error:
        load_model(given, device="cpu")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_folders_that_are_no_model(tmp_path, folder):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        load_model(tmp_path, device="cpu")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="tiny-llama' could not be loaded"):
        load_model(folder, device="cpu")


def test_objects_that_are_no_model_with_a_tokenizer():
    headless = AutoModel.from_config(GPT2Config(vocab_size=300, n_embd=24, n_layer=2, n_head=2))
    slow = SimpleNamespace(is_fast=False)
    for model, tokenizer, message in (
        (tiny_lm("llama"), None, "came without its tokenizer"),
        (tiny_lm("llama"), slow, "gives no character offsets"),
        (headless, tiny_tokenizer(), "Give a causal language model"),
        (torch.nn.Linear(2, 2), tiny_tokenizer(), "A Linear is not a causal language model"),
    ):
        with pytest.raises(UserError, match=message):
            load_model(model, tokenizer=tokenizer)


@pytest.mark.parametrize("device", ["cuda:77", "abacus"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(UserError, match=f"Device '{device}' cannot be used"):
        choose(device, "auto")
    with pytest.raises(UserError, match=r"Unknown dtype 'int3'\. Accepted: auto, float32"):
        choose("cpu", "int3")


def test_weights_are_read_straight_onto_a_gpu(folder, monkeypatch):
    """Main memory is in its place here: the same weights, or an error where they do not fit."""
    maps = []
    own = load.AutoModelForCausalLM.from_pretrained

    def read(place, *, device_map=None, **options):
        maps.append(device_map)
        return own(place, device_map=device_map and "cpu", **options)

    choice = Choice("cuda:0", torch.float32, "as asked")
    monkeypatch.setattr(load, "choose", lambda device, dtype: choice)
    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", read)
    model = load_model(str(folder))
    assert maps == ["cuda:0"]
    plain = own(folder).state_dict()
    assert all(torch.equal(plain[name], weight) for name, weight in model.lm.state_dict().items())

    def full(place, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", full)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(
        total_memory=8 * 2**30))  # fmt: skip
    with pytest.raises(UserError, match=r"free of cuda:0 \(8\.0 GiB in all\)\. Choose another"):
        load_model(str(folder))


@pytest.mark.parametrize("style", ["text", "chat"])
def test_a_prompt_names_the_place_of_its_question(bundled, style):
    question = "What country is São Tomé in?"
    prompt = make_prompt(bundled, question, shots=SHOTS, style=style)
    text = bundled.tokenizer.decode(prompt.ids)
    assert text[prompt.question.start : prompt.question.stop] == question
    assert text.count("The sky") == text.count("Earth") == 1
    assert has_chat(bundled)
    start, stop = prompt.question
    inside = [i for i, (a, b) in zip(prompt.ids, prompt.offsets, strict=True)
              if b > start and a < stop]  # fmt: skip
    assert bundled.tokenizer.decode(inside).strip() == question


def test_answers_end_at_a_line_end_and_at_every_end_token(bundled):
    stops = set(stop_ids(bundled))
    tokenizer = bundled.tokenizer
    assert {
        tokenizer.eos_token_id,
        *tokenizer("\n")["input_ids"],
        *tokenizer("\n\n")["input_ids"],
    } <= stops
    for word in ("India", " Paris", ".", " the"):
        assert not stops & set(tokenizer(word)["input_ids"])
