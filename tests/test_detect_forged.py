"""A damaged, forged or foreign detector folder is refused; a local path stays at home."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
from test_detect_files import run, saved

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import Stored, read_folder, upload, write_folder
from anchorscope.errors import UserError

__all__ = ["run", "saved"]  # fixtures


def edit(**changes):
    return lambda f: f.write_text(json.dumps(json.loads(f.read_text()) | changes))


DAMAGE = {
    "a bit of the weights": ("detector.safetensors", lambda f: f.write_bytes(
        f.read_bytes()[:-1] + bytes([f.read_bytes()[-1] ^ 1]))),
    "the end of the weights": ("detector.safetensors", lambda f: f.write_bytes(
        f.read_bytes()[:-9])),
    "no weights": ("detector.safetensors", lambda f: f.unlink()),
    "a pickle for weights": ("detector.safetensors", lambda f: f.write_bytes(pickle.dumps({}))),
    "weights of 38 GB": ("detector.safetensors", lambda f: os.truncate(f, 38 << 30)),  # a hole
    "no description": ("detector.json", lambda f: f.unlink()),
    "half a description": ("detector.json", lambda f: f.write_text(f.read_text()[:50])),
    "a description of 38 GB": ("detector.json", lambda f: os.truncate(f, 38 << 30)),
    "another threshold": ("detector.json", edit(threshold=0.01)),
    "no number of JSON": ("detector.json", edit(threshold=float("nan"))),
    "another format": ("detector.json", edit(format=99)),
    "another kind of file": ("detector.json", lambda f: f.write_text('{"format": 1}')),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_folder_is_refused(saved, tmp_path, damage):
    (name, change), folder = DAMAGE[damage], shutil.copytree(saved[1], tmp_path / "copy")
    change(folder / name)
    with pytest.raises(UserError, match="No detector could be read"):
        Detector.load(folder)
    with pytest.raises(UserError, match="No detector could be read"):
        upload(folder, "org/name", private=True)


PROMISE = {"risk": 0.1, "confidence": 0.9, "entities": 100, "accepted": 50, "wrong": 2}
BROKEN = "its promise: .* not supported by its own counts"
FORGED = [
    ({"threshold": 2.0}, "its threshold is 2.0"),
    ({"threshold": None}, "its threshold is None"),
    ({"prompt.max_tokens": 10**8}, "its prompt.max_tokens is 100000000"),
    ({"prompt.shots": True}, "its prompt.shots is True"),
    ({"examples": []}, "its examples are none"),
    ({"examples": [{"question": "Who?", "prompt_ids": ["a"]}]}, "prompt_ids.0 is 'a'"),
    ({"calibration.slope": -1.0}, "its calibration.Platt.slope is -1.0"),
    ({"model.blocks": 0}, "its model.blocks is 0"),
    ({"model.width": 7}, "has an array of the shape"),
    ({"model.dtype": "int4"}, "its model.dtype is 'int4'"),
    ({"model.name": "llama\x1b]0;owned\x07"}, r"its model.name is 'llama\\x1b\]0;owned\\x07'"),
    ({"model": []}, r"its model is \[\]"),
    ({"name": "combined"}, "its parts cannot be put together again"),
    ({"name": "mop"}, "of the kind 'mop', which this version does not deploy"),
    ({"band": [0.2, 7]}, "its band.1 is 7"),
    ({"band": [0.9, 0.1]}, r"its band is \(0.9, 0.1\)"),
    ({"trained_on.wrong": 9, "trained_on.answers": 8}, "its trained_on: .*9 of 8 are wrong"),
    ({"promise": PROMISE | {"risk": 3.0}}, "its promise.risk is 3.0"),
    ({"promise": PROMISE | {"risk": 0.001, "accepted": 10, "wrong": 9}}, BROKEN),
    ({"promise": PROMISE | {"accepted": 101}}, BROKEN),
    ({"pre_answer": {"threshold": 0.5, "evaluation": {}, "calibration":
      {"slope": 1.0, "intercept": 0.0}}}, "its parts cannot be put together again"),
    ({"evaluation.auroc_low": 0.9, "evaluation.auroc_high": 0.2}, "its evaluation: .*0.9 to 0.2"),
    ({"evaluation.n": 1e300}, "its evaluation.n"),
    ({"licence": {"detector": "x" * 5000}}, "its licence.detector"),
]  # fmt: skip
WEIGHTS = [
    ("coef", lambda a: a * np.nan, "the weights 'coef' are not all finite"),
    ("layers", lambda a: a + 7, "at layer 8, and the model has 1"),
    ("distance.layer", lambda a: np.array(-3), "at layer -3"),
    ("distance.rest", lambda a: np.array(0.0), "variance"),
    ("distance.variances", lambda a: a * 0, "variance"),
    ("distance.scale", lambda a: a * 0, "scale"),
    ("distance.seen", lambda a: a[:0], "distances"),
    ("distance.seen", lambda a: a[::-1].copy(), "distances"),
    ("distance.mean", lambda a: a[:-1], "has an array of the shape"),
    ("beliefs.coef", lambda a: a[:0], "has an array of the shape"),
]


def own_fields(stored: Stored) -> Stored:
    free = ("sha256", "checksum", "kind", "format")
    return stored._replace(about={k: v for k, v in stored.about.items() if k not in free})


@pytest.mark.parametrize(("changes", "reason"), FORGED)
def test_a_forged_folder_with_right_checksums_is_refused(saved, tmp_path, changes, reason):
    stored = own_fields(read_folder(saved[1]))
    for name, value in changes.items():
        at, _, inner = name.partition(".")
        stored.about[at] = stored.about[at] | {inner: value} if inner else value
    write_folder(tmp_path / "forged", stored, "a card")
    with pytest.raises(UserError, match=f"No detector could be read from .*{reason}"):
        Detector.load(tmp_path / "forged")


@pytest.mark.parametrize(("name", "forge", "reason"), WEIGHTS)
def test_forged_weights_are_refused(saved, tmp_path, name, forge, reason):
    stored = own_fields(read_folder(saved[1]))
    stored.tensors[name] = forge(stored.tensors[name])
    write_folder(tmp_path / "forged", stored, "a card")
    with pytest.raises(UserError, match=f"No detector could be read from .*({reason})"):
        Detector.load(tmp_path / "forged")


@pytest.mark.parametrize("place", ["/home/somebody/models/secret/llama", "./models/secret", "~/x",
                                   "models/secret/llama", "weights/secret.gguf"])  # fmt: skip
def test_a_local_path_stays_out_of_the_card(saved, tmp_path, place):
    model = saved[0].model | {"name": "llama", "source": place, "adapter": place}
    card = replace(saved[0], model=model).card
    assert place not in card and "models/" not in card and "weights/" not in card
    assert 'load_model("llama"' in card
    named = saved[0].model | {"source": "org/llama", "adapter": "org/lora"}
    card = replace(saved[0], model=named).card
    assert 'load_model("org/llama", adapter="org/lora")' in card


def test_the_licence_may_be_written_by_hand(saved, tmp_path):
    folder = shutil.copytree(saved[1], tmp_path / "copy")
    edit(licence={"detector": "cc0-1.0"})(folder / "detector.json")
    assert Detector.load(folder).licence == {"detector": "cc0-1.0"}
