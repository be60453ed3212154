"""A damaged, forged or foreign detector folder is refused; a local path stays at home."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_detect_files import run, saved

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import Stored, checksum, read_folder, upload, write_folder
from anchorscope.errors import UserError

__all__ = ["run", "saved"]  # fixtures


def change(folder, copy, name, how):
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    how(copy / name)
    return copy


def edit(**changes):
    def do(file):
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return do


DAMAGE = {
    "a bit of the weights": ("detector.safetensors", lambda f: f.write_bytes(
        f.read_bytes()[:-1] + bytes([f.read_bytes()[-1] ^ 1]))),
    "the end of the weights": ("detector.safetensors", lambda f: f.write_bytes(
        f.read_bytes()[:-9])),
    "no weights": ("detector.safetensors", lambda f: f.unlink()),
    "a pickle for weights": ("detector.safetensors", lambda f: f.write_bytes(pickle.dumps({}))),
    "no description": ("detector.json", lambda f: f.unlink()),
    "half a description": ("detector.json", lambda f: f.write_text(f.read_text()[:50])),
    "another threshold": ("detector.json", edit(threshold=0.01)),
    "another format": ("detector.json", edit(format=99)),
    "another kind of file": ("detector.json", lambda f: f.write_text('{"format": 1}')),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_folder_is_refused(saved, tmp_path, damage):
    folder = change(saved[1], tmp_path / "copy", *DAMAGE[damage])
    with pytest.raises(UserError, match="No detector could be read"):
        Detector.load(folder)
    with pytest.raises(UserError, match="No detector could be read"):
        upload(folder, "org/name", private=True)


def forged(folder, copy, text=("", ""), **changes):
    """The folder with other fields or other text, and with the checksums that belong to them."""
    about = json.loads((folder / "detector.json").read_text())
    for name, value in changes.items():
        at, *path = name.split("__")
        if path:
            about[at] = about[at] | {path[0]: value}
        else:
            about[at] = value
    for free in ("sha256", "checksum", "kind", "format"):
        del about[free]
    write_folder(copy, Stored(load_file(folder / "detector.safetensors"), about), "a card")
    if text[0]:
        file = copy / "detector.json"
        written = file.read_text().replace(*text)
        about = json.loads(written)
        file.write_text(written.replace(about["checksum"], checksum(about)))
    return copy


PROMISE = {"risk": 0.1, "confidence": 0.9, "entities": 100, "accepted": 50, "wrong": 2}
FORGED = {
    "a threshold above 1": ({"threshold": 2.0}, "its threshold is 2.0"),
    "no threshold": ({"threshold": None}, "its threshold is None"),
    "far too many tokens": ({"prompt__max_tokens": 10**8}, "its prompt.max_tokens is 100000000"),
    "a truth for a count": ({"prompt__shots": True}, "its prompt.shots is True"),
    "no prompts": ({"examples": []}, "its examples are none"),
    "a prompt of words": (
        {"examples": [{"question": "Who?", "prompt_ids": ["a"]}]},
        "its examples.0.prompt_ids.0 is 'a'",
    ),
    "a falling line": ({"calibration__slope": -1.0}, "its calibration.Platt.slope is -1.0"),
    "no blocks": ({"model__blocks": 0}, "its model.blocks is 0"),
    "another width": ({"model__width": 7}, "has an array of the shape"),
    "another method": ({"name": "combined"}, "its parts cannot be put together again"),
    "a list for the model": ({"model": []}, "its model is \\[\\]"),
    "an unknown dtype": ({"model__dtype": "int4"}, "its model.dtype is 'int4'"),
    "a band of nothing": ({"band": [0.2, 7]}, "its band.1 is 7"),
    "a promise above 1": ({"promise": PROMISE | {"risk": 3.0}}, "its promise.risk is 3.0"),
    "a warning without a probe": (
        {"pre_answer": {"threshold": 0.5, "evaluation": {}, "calibration": {"slope": 1.0,
         "intercept": 0.0}}}, "its parts cannot be put together again",
    ),
    "a band that ends before it begins": ({"band": [0.9, 0.1]}, "its band is \\(0.9, 0.1\\)"),
    "a band beside the threshold": ({"band": [0.0, 0.0], "threshold": 0.5}, "its band is"),
    "more wrong answers than answers": (
        {"trained_on__wrong": 9, "trained_on__answers": 8}, "its trained_on: .*9 of 8 are wrong",
    ),
    "a promise that its own counts break": (
        {"promise": PROMISE | {"risk": 0.001, "entities": 10, "accepted": 10, "wrong": 9}},
        "its promise: .* not supported by its own counts",
    ),
    "more accepted than asked": (
        {"promise": PROMISE | {"accepted": 101}}, "its promise: .* not supported by its own counts",
    ),
    "escapes for the terminal": (
        {"model__name": "llama\x1b]0;owned\x07"}, r"its model.name is 'llama\\x1b\]0;owned\\x07'",
    ),
    "an AUROC interval upside down": (
        {"evaluation__auroc_low": 0.9, "evaluation__auroc_high": 0.2},
        "its evaluation: .*0.9 to 0.2",
    ),
    "an endless licence": ({"licence": {"detector": "x" * 5000}}, "its licence.detector"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_folder_with_right_checksums_is_refused(saved, tmp_path, what):
    changes, said = FORGED[what]
    with pytest.raises(UserError, match=f"No detector could be read from .*{said}"):
        Detector.load(forged(saved[1], tmp_path / "forged", **changes))
    assert Detector.load(forged(saved[1], tmp_path / "same")).threshold == saved[0].threshold


DISTANCE = {
    "a layer counted from behind": ("layer", lambda a: np.array(-3), "at layer -3"),
    "no variance beside the directions": ("rest", lambda a: np.array(0.0), "variance"),
    "no variance along a direction": ("variances", lambda a: a * 0, "variance"),
    "a scale of 0": ("scale", lambda a: a * 0, "scale"),
    "no distances": ("seen", lambda a: a[:0], "distances"),
    "distances out of order": ("seen", lambda a: a[::-1].copy(), "distances"),
    "another width": ("mean", lambda a: a[:-1], "has an array of the shape"),
}


@pytest.mark.parametrize("what", DISTANCE)
def test_a_forged_distance_is_refused(saved, tmp_path, what):
    name, forge, said = DISTANCE[what]
    tensors, about = read_folder(saved[1])
    tensors[f"distance.{name}"] = forge(tensors[f"distance.{name}"])
    kept = {k: v for k, v in about.items() if k not in ("sha256", "checksum", "kind", "format")}
    write_folder(tmp_path / "forged", Stored(tensors, kept), "a card")
    with pytest.raises(UserError, match=f"No detector could be read from .*({said})"):
        Detector.load(tmp_path / "forged")


@pytest.mark.parametrize("beliefs", [True, False])
def test_a_small_folder_cannot_ask_for_much_memory(run, tmp_path, beliefs):
    """10,000 layers of width 2^20 would be 42 GB, announced by a few bytes of JSON."""
    made = Detector.train(run, method="entity-log-prob", folds=3, resamples=100)
    shape = {"model__blocks": 10_000, "model__width": 1 << 20}
    parts = {"distance": None} | ({} if beliefs else {"beliefs": None})
    small = replace(made, **parts).save(tmp_path / "small")
    folder = forged(small, tmp_path / "large", **shape)
    said = "its beliefs has an array of the shape"
    refused = pytest.raises(UserError, match=said) if beliefs else nullcontext()
    tracemalloc.start()
    try:
        with refused:
            Detector.load(folder)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_forged_weights_and_numbers_that_json_does_not_know_are_refused(saved, tmp_path):
    for n, value in enumerate((np.nan, np.inf)):
        tensors, about = read_folder(saved[1])
        tensors["coef"] = np.full_like(tensors["coef"], value)
        kept = {k: v for k, v in about.items() if k not in ("sha256", "checksum")}
        write_folder(tmp_path / str(n), Stored(tensors, kept), "a card")
        with pytest.raises(UserError, match="the weights 'coef' are not all finite"):
            Detector.load(tmp_path / str(n))
    text = (saved[1] / "detector.json").read_text()
    assert json.loads("1e999") == np.inf  # a number to JSON, and none to us
    endless = forged(saved[1], tmp_path / "inf", text=("12345.5", "1e999"), evaluation__n=12345.5)
    with pytest.raises(UserError, match=r"its evaluation\.n"):
        Detector.load(endless)
    folder = change(saved[1], tmp_path / "nan", "detector.json", lambda f: f.write_text(
        text.replace(f'"threshold": {saved[0].threshold}', '"threshold": NaN')))  # fmt: skip
    with pytest.raises(UserError, match="holds NaN, which is no number of JSON"):
        Detector.load(folder)


@pytest.mark.parametrize("name", ["detector.json", "detector.safetensors"])
def test_a_file_is_measured_before_it_is_read(saved, tmp_path, name):
    def grow(file):
        os.truncate(file, 38 << 30)  # a hole: it takes no room on the disk

    folder = change(saved[1], tmp_path / "copy", name, grow)
    with pytest.raises(UserError, match=f"{name} has 40802189312 bytes, and"):
        Detector.load(folder)


@pytest.mark.parametrize("place", ["/home/somebody/models/secret/llama", "./models/secret", "~/x",
                                   "models/secret/llama", "weights/secret.gguf"])  # fmt: skip
def test_a_local_path_stays_out_of_the_card(saved, tmp_path, place):
    model = saved[0].model | {"name": "llama", "source": place, "adapter": place}
    card = (replace(saved[0], model=model).save(tmp_path / "d") / "README.md").read_text()
    assert place not in card and "models/" not in card and "weights/" not in card
    assert 'load_model("llama"' in card
    named = saved[0].model | {"source": "org/llama", "adapter": "org/lora"}
    card = (replace(saved[0], model=named).save(tmp_path / "d") / "README.md").read_text()
    assert 'load_model("org/llama", adapter="org/lora")' in card


def test_the_licence_may_be_written_by_hand(saved, tmp_path):
    how = edit(licence={"detector": "cc0-1.0"})
    folder = change(saved[1], tmp_path / "copy", "detector.json", how)
    assert Detector.load(folder).licence == {"detector": "cc0-1.0"}
