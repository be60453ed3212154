"""Rotary embeddings that depend on the length of a pass: exact below the switch, refused beyond."""

from __future__ import annotations

import json

import pytest
import torch
from kit.engine_samples import CLOSE, SAMPLES, cut_of, engine_states, marked
from kit.plain import plain_states
from kit.tiny import tiny_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

from anchorscope.engine.check import check_model
from anchorscope.engine.interventions import Intervention
from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.models.parts import rotary_switch

_SIZES = {
    "vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 6,
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
}  # fmt: skip
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
KINDS = ["longrope", "dynamic"]


def rotary_model(kind: str, switch: int):
    """A tiny Phi-3 with longrope or a Llama with dynamic rotary embeddings."""
    torch.manual_seed(0)
    if kind == "longrope":
        config = Phi3Config(
            **_SIZES, max_position_embeddings=512, original_max_position_embeddings=switch,
            rope_parameters=dict(_LONG), sliding_window=None,
        )  # fmt: skip
    else:
        config = LlamaConfig(**_SIZES, max_position_embeddings=switch + 1, rope_parameters=_DYNAMIC)
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return load_model(lm, tokenizer=tiny_tokenizer())


LONGEST = max(len(sample.ids) for sample in SAMPLES)


@pytest.mark.parametrize("kind", KINDS)
def test_below_the_switch_states_are_those_of_one_row_at_a_time(kind):
    model = rotary_model(kind, LONGEST)
    assert rotary_switch(model.lm) == LONGEST
    cut = Intervention(name="knockout")
    ours = engine_states(model, SAMPLES, cut)
    for sample, states in zip(SAMPLES, ours, strict=True):
        plain = plain_states(model, [sample.ids], cut_of([sample], cut))[0]
        torch.testing.assert_close(states, plain, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_beyond_the_switch_is_refused_and_not_read_wrong(kind):
    """Beside it a short row would be turned by the angles of long rows."""
    model = rotary_model(kind, 30)
    samples = [SAMPLES[0], marked(9, 25, 2, (3, 4))]
    assert len(samples[0].ids) < 30 < len(samples[1].ids)
    with pytest.raises(UserError, match=r"reads rows of up to 30 tokens exactly.*37 were given"):
        engine_states(model, samples, Intervention(name="knockout"))
    engine_states(model, samples[:1], Intervention(name="knockout"))


@pytest.mark.parametrize("kind", ["default", "linear", "yarn", "llama3"])
def test_other_rotary_embeddings_have_no_switch(kind):
    extra = {} if kind == "default" else {"factor": 4.0, "original_max_position_embeddings": 64}
    if kind == "llama3":
        extra |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": kind, "rope_theta": 1e4, **extra}
    lm = AutoModelForCausalLM.from_config(LlamaConfig(**_SIZES, rope_parameters=rope))
    assert rotary_switch(lm) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_doctor_tries_the_last_position_that_is_read(kind):
    checks = {check.name: check for check in check_model(rotary_model(kind, 64))}
    far = checks["a row far from the others changes none of them"]
    assert far.ok and "position 63" in far.seen
    assert all(check.ok for check in checks.values())


def test_the_doctor_refuses_a_switch_that_no_config_names(monkeypatch):
    monkeypatch.setattr("anchorscope.models.parts.rotary_switch", lambda lm: None)
    monkeypatch.setattr("anchorscope.engine.lease.rotary_switch", lambda lm: None)
    checks = {check.name: check for check in check_model(rotary_model("longrope", 64))}
    assert not checks["a row far from the others changes none of them"].ok


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_beyond_the_switch_are_refused_before_anything_runs(
    tmp_path, cli, monkeypatch, kind
):
    model = rotary_model(kind, 120)
    model.lm.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    texts = [f"Where does the river {name} end?" for name in ("Rhine", "Po", "Ob", "Ebro", "Inn")]
    texts.append("Where does the river " + "very " * 30 + "long end?")
    rows = [{"id": str(n), "question": t, "answers": ["sea"]} for n, t in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    words = ["detect", "collect", "--model", "model", "--data", "rows.jsonl", "--shots", "0"]
    words += ["--prompt", "text", "--device", "cpu", "--dtype", "float32", "--out", "run"]
    code, out, error = cli(*words, "--max-tokens", "8", "--shard", "1")
    message = " ".join((out + error).split())
    assert code == 2 and "reads rows of up to 120 tokens exactly" in message, message
    assert not list(tmp_path.glob("run/states/*/*"))
