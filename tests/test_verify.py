"""`anchorscope verify`: each damage is named, and a sound folder passes, also computed again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kit.detect_worlds import plain, write_run
from kit.rivers import collect_here, rivers

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import checksum
from anchorscope.run_folder.view import RunView


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder of `detect collect`, eight questions of a tiny model."""
    return collect_here(rivers(tmp_path_factory.mktemp("verify")), "run")


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_sound_folder_passes_also_computed_again(cli, run):
    code, said, _ = cli("verify", run, "--deep")
    assert code == 0, said
    lines = [line for line in said.splitlines() if line.startswith("ok")]
    listed = json.loads((run / "run.json").read_text())["files"]
    assert all(any(name in line for line in lines) for name in listed)
    assert "samples.parquet: computed again, the same bytes" in said
    assert "tables/spans.csv: computed again, the same bytes" in said


def test_damaged_states_are_not_learnt_from(cli, tmp_path):
    run = write_run(tmp_path / "run", [plain(n=120, strength=2.0)])
    file = run / "states/clean/00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    words = ("--method", "probe", "--folds", "3", "--out", tmp_path / "detector")
    code, _, error = cli("detect", "train", run, *words)
    assert code == 2 and "states/clean/00000.safetensors' is damaged" in error


def test_removed_states_are_noted_and_no_fault(cli, run):
    shutil.rmtree(run / "states")
    code, out, _ = cli("verify", run)
    assert code == 0 and "states: removed after the run" in out


def test_a_detector_is_verified(cli, tmp_path):
    run = RunView.open(write_run(tmp_path / "run", [plain(n=120, strength=2.0)]), collected_ok=True)
    made = Detector.train(run, method="probe", folds=3, resamples=100)
    folder = made.save(tmp_path / "detector")
    code, out, _ = cli("verify", folder, "--deep")
    assert code == 0 and f"held-out AUROC {made.evaluation['auroc']}" in out
    about = json.loads((folder / "detector.json").read_text())
    about["evaluation"]["auroc"] = "very good" * 1000  # forged, with a checksum that fits
    about["checksum"] = checksum(about)
    (folder / "detector.json").write_text(json.dumps(about))
    code, out, _ = cli("verify", folder, "--deep")
    assert code == 1 and "its evaluation.auroc is" in out
    (folder / "detector.safetensors").write_bytes(b"x")
    code, out, _ = cli("verify", folder)
    assert code == 1 and "detector.safetensors is not the file" in out


def test_a_folder_that_is_neither_run_nor_detector_is_refused(cli, tmp_path):
    code, _, error = cli("verify", tmp_path)
    assert code == 2 and "holds no run.json and no detector.json" in error
    code, _, error = cli("verify", tmp_path / "nowhere")
    assert code == 2 and "There is no folder" in error
