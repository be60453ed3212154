"""`anchorscope detect push` against a stand-in for the hub."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from huggingface_hub import close_session, constants
from kit.hub_server import Hub, hub
from kit.tiny import tiny_lm, tiny_tokenizer
from test_detect_score import make

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import FILES
from anchorscope.models import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A detector whose model lies in a folder of this machine."""
    home = tmp_path_factory.mktemp("detectors")
    detector = make(load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer()))
    local = replace(detector, model=detector.model | {"source": str(home / "models" / "tiny")})
    return local.save(home / "detector")


@pytest.fixture
def push(folder, cli, tmp_path, monkeypatch):
    """Run `anchorscope detect push` of the detector to this stand-in; exit code, output, error."""

    def run(hub: Hub, *words: str, token: str = "hf_right") -> tuple[int, str, str]:
        for name, value in {
            "HF_HUB_OFFLINE": False,
            "ENDPOINT": hub.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        close_session()
        return cli("detect", "push", folder, *words)

    yield run
    close_session()


def test_a_pushed_detector_is_fetched_again_and_is_the_same(folder, push):
    with hub() as there:
        code, out, error = push(there, "org/detector")
        assert code == 0, error
        assert out.strip() == f"{there.address}/org/detector"
        assert there.repositories["org/detector"]["private"] is True
        assert set(there.files("org/detector")) == set(FILES)
        assert len(there.large) == 1  # the weights went as a large file
        again = Detector.load("org/detector")
    own = Detector.load(folder)
    assert again.model == own.model | {"source": "tiny", "adapter": None}
    # What is local stays here: neither the card nor the description says where the model lies.
    for name in ("README.md", "detector.json"):
        assert str(folder.parent) not in there.files("org/detector")[name].decode()
    assert str(folder.parent) in (folder / "detector.json").read_text()
    weights = (folder / "detector.safetensors").read_bytes()
    assert there.files("org/detector")["detector.safetensors"] == weights


def test_an_existing_repository_gets_the_new_files_and_keeps_the_others(folder, push):
    old = {"private": False, "files": {"notes.txt": b"mine", "README.md": b"an older card"}}
    with hub(repositories={"org/detector": old}) as there:
        code, _, error = push(there, "org/detector")
    assert code == 0, error
    files = there.files("org/detector")
    assert set(files) == {*FILES, "notes.txt"} and files["notes.txt"] == b"mine"
    assert json.loads(files["detector.json"])["kind"] == "anchorscope-detector"
    assert files["README.md"] == (folder / "README.md").read_bytes()


def test_public_is_asked_for_by_name(push):
    with hub() as there:
        code, _, error = push(there, "org/open", "--public")
    assert code == 0, error
    assert there.repositories["org/open"]["private"] is False


def test_a_refusal_is_one_sentence_and_nothing_is_uploaded(push):
    with hub() as there:
        code, _, error = push(there, "org/detector", token="hf_wrong")
    assert code == 2
    assert "'org/detector' could not be written" in error and "401" in error
    assert "hf auth login" in error and "Traceback" not in error
    assert not there.repositories and not there.large
    assert not any("preupload" in address or "commit" in address for address in there.asked)
