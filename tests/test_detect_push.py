"""`anchorscope detect push` against a stand-in for the hub, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
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


def command(code: str, *words: object, hub: Hub, home, token: str = "hf_right"):
    """Python in a process that takes the stand-in for the hub."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HOME": str(home / "hf")}
    env |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "COLUMNS": "300"}
    words = (sys.executable, "-c", code, *map(str, words))
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=120, check=False)


def push(folder, *more, **where):
    return command("from anchorscope.cli import main; main()",
                   "detect", "push", folder, *more, **where)  # fmt: skip


def test_a_pushed_detector_is_fetched_again_and_is_the_same(folder, tmp_path):
    with hub() as there:
        done = push(folder, "org/detector", hub=there, home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{there.address}/org/detector"
        assert there.repositories["org/detector"]["private"] is True
        assert set(there.files("org/detector")) == set(FILES)
        assert len(there.large) == 1  # the weights went as a large file
        code = (
            "import sys; from anchorscope import Detector; print(Detector.load(sys.argv[1]).model)"
        )
        again = command(code, "org/detector", hub=there, home=tmp_path)
        assert again.returncode == 0, again.stderr
    own = Detector.load(folder)
    assert again.stdout.strip() == str(own.model | {"source": "tiny", "adapter": None})
    # What is local stays here: neither the card nor the description says where the model lies.
    for name in ("README.md", "detector.json"):
        assert str(folder.parent) not in there.files("org/detector")[name].decode()
    assert str(folder.parent) in (folder / "detector.json").read_text()
    weights = (folder / "detector.safetensors").read_bytes()
    assert there.files("org/detector")["detector.safetensors"] == weights


def test_an_existing_repository_gets_the_new_files_and_keeps_the_others(folder, tmp_path):
    old = {"private": False, "files": {"notes.txt": b"mine", "README.md": b"an older card"}}
    with hub(repositories={"org/detector": old}) as there:
        done = push(folder, "org/detector", hub=there, home=tmp_path)
    assert done.returncode == 0, done.stderr
    files = there.files("org/detector")
    assert set(files) == {*FILES, "notes.txt"} and files["notes.txt"] == b"mine"
    assert json.loads(files["detector.json"])["kind"] == "anchorscope-detector"
    assert files["README.md"] == (folder / "README.md").read_bytes()


def test_a_refusal_is_one_sentence_and_nothing_is_uploaded(folder, tmp_path):
    with hub() as there:
        done = push(folder, "org/detector", hub=there, home=tmp_path, token="hf_wrong")
    assert done.returncode == 2
    assert "'org/detector' could not be written" in done.stderr and "401" in done.stderr
    assert "hf auth login" in done.stderr and "Traceback" not in done.stderr
    assert not there.repositories and not there.large
    assert not any("preupload" in asked or "commit" in asked for asked in there.asked)
