"""The proof of a model on disk: a second process does not prove it; any change of it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine.check import checks, require_understood
from anchorscope.engine.lease import Lease
from anchorscope.engine.limits import facts_of
from anchorscope.models import Model, load_model


@pytest.fixture(autouse=True)
def proofs(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a process that has proved nothing."""
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(checks, "_PROVED", {})
    return tmp_path / "proofs"


def tiny() -> Model:
    return load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())


def proved_anew(model: Model, monkeypatch) -> bool:
    """Whether the checks are made, in a process that starts with what is on disk."""
    made: list[Model] = []
    check_model = checks.check_model

    def noted(given: Model, **options):
        made.append(given)
        yield from check_model(given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checks, "_PROVED", {})
        patch.setattr(checks, "check_model", noted)
        require_understood(model)
    return bool(made)


def test_a_second_process_takes_the_proof_from_disk(proofs, monkeypatch):
    first, second = tiny(), tiny()
    assert proved_anew(first, monkeypatch)
    assert len(list(proofs.iterdir())) == 1
    assert not proved_anew(second, monkeypatch)
    before, after = (facts_of(model.lm) for model in (first, second))
    assert (before.bounds, before.largest, before.fused) == (
        after.bounds, after.largest, after.fused,
    )  # fmt: skip
    assert before.pack_proof is not None and after.pack_proof is not None
    assert before.pack_proof[:2] == after.pack_proof[:2]
    with Lease(second) as lease:
        assert after.pack_proof.more(lease, 256)


def test_other_weights_config_source_or_processor_are_proved_anew(proofs, monkeypatch):
    assert proved_anew(tiny(), monkeypatch)
    other = tiny()
    with torch.no_grad():
        next(other.lm.parameters()).view(-1)[0] += 1
    assert proved_anew(other, monkeypatch)
    scaled = tiny()
    scaled.lm.config.rms_norm_eps *= 2
    assert proved_anew(scaled, monkeypatch)
    for name, value in (("_source_hash", "other"), ("_device", ["other"])):
        with monkeypatch.context() as patch:
            patch.setattr(checks, name, lambda *_, value=value: value)
            assert proved_anew(tiny(), monkeypatch)
    assert not proved_anew(tiny(), monkeypatch)


def test_a_damaged_proof_counts_for_nothing(proofs, monkeypatch):
    assert proved_anew(tiny(), monkeypatch)
    (file,) = proofs.iterdir()
    file.write_text('{"tokens": "many"}', encoding="utf-8")
    assert proved_anew(tiny(), monkeypatch)


def test_doctor_always_proves(proofs, cli, tmp_path):
    model = tiny()
    require_understood(model)
    model.lm.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    code, printed, _ = cli("doctor", "--model", str(tmp_path / "model"))
    assert code == 0 and "the knockout blocks what it says" in printed
