"""A finished run that lost something: `verify` names it, and the same command restores it."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from kit.rivers import HALF, a_file_of_each_kind, main_in
from kit.tiny import tiny_lm

from anchorscope.run_folder.store import Store


@pytest.fixture
def run(finished_place, tmp_path) -> Path:
    """The finished run in a copy of its place."""
    return Path(shutil.copytree(finished_place, tmp_path / "place")) / "run"


def again(run: Path) -> None:
    """The same command once more."""
    main_in(run.parent, *HALF, "--out", "run")


def wrong_names(cli, run: Path) -> set[str]:
    """The names that `verify` calls wrong."""
    code, out, error = cli("verify", run)
    assert "Traceback" not in out + error
    lines = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert code == (1 if lines else 0), out
    return {line.removeprefix("WRONG").split(": ")[0].strip() for line in lines}


def files(run: Path) -> dict[str, bytes]:
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_every_kind_of_file_of_a_finished_run_is_missed(cli, run):
    """One after another is taken away and put back: none is left without a word."""
    assert wrong_names(cli, run) == set()
    for name in a_file_of_each_kind(run, random.Random(0)):
        content = (run / name).read_bytes()
        (run / name).unlink()
        assert wrong_names(cli, run) == {name}
        (run / name).write_bytes(content)


def test_every_file_of_a_finished_run_is_missed_when_much_is_damaged(cli, run):
    """A file is named as wrong whatever became of every other, but for run.json."""
    lost = {name for name in files(run) if name != "run.json"}
    for name in lost:
        (run / name).unlink() if name.endswith(("0.parquet", ".json", ".png")) else (
            run / name
        ).write_bytes(b"")
    assert wrong_names(cli, run) >= lost


def test_marked_files_are_checked_without_run_json(cli, run):
    """Markers say what was written where run.json is damaged or gone."""
    state = run / "states/clean/00001.safetensors"
    state.write_bytes(bytes(state.stat().st_size))
    (run / "run.json").write_bytes(b"{")
    assert wrong_names(cli, run) == {"run.json", "states/clean/00001.safetensors"}
    (run / "run.json").unlink()
    assert wrong_names(cli, run) == {"run.json", "states/clean/00001.safetensors"}


def test_the_same_command_restores_what_a_finished_run_lost(cli, run):
    """All but the tables of `detect eval`, which it does not make: it vouches for none."""
    store, other = Store(run), run / "tables/detectors.csv"
    other.write_text("detector,auroc\nprobe,0.7\n")
    store.add("tables/detectors.csv")
    store.relist()
    assert wrong_names(cli, run) == set()
    before = files(run)
    for name in ("report.html", "figures/delta_p.png", "probes/half/probes.json",
                 "tables/layers.csv", "markers/states/clean/00001.safetensors.json",
                 "states/knockout/00000.safetensors",
                 "outputs/neutral/00001.parquet"):  # fmt: skip
        (run / name).unlink()
    flipped = run / "probes/half/probes.safetensors"
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"\x01")
    other.write_text("detector,auroc\nprobe,0.9\n")
    again(run)
    assert wrong_names(cli, run) == {"tables/detectors.csv"}
    after = files(run)
    assert set(after) == set(before)
    parts = ("answers", "states", "outputs", "tables", "probes", "markers")
    kept = [n for n in before if n.startswith(parts) and "report.html" not in n]  # it has seconds
    assert [name for name in kept if before[name] != after[name]] == ["tables/detectors.csv"]


def test_lost_markers_are_restored_without_the_model(cli, run):
    before = files(run)
    shutil.rmtree(run / "markers")
    shutil.rmtree(run.parent / "model")
    again(run)
    assert wrong_names(cli, run) == set() and files(run) == before


def test_other_weights_under_the_same_name_are_refused(run, monkeypatch, cli):
    """A run that lacks a file goes on, and the model's file is another by now."""
    (run / "states/knockout/00000.safetensors").unlink()
    tiny_lm("llama", 1).save_pretrained(run.parent / "model")
    monkeypatch.chdir(run.parent)
    code, _, error = cli(*HALF, "--out", "run")
    assert code == 2 and "was begun with other weights or another dtype" in error


def test_a_killed_process_of_the_analysis_is_one_sentence_and_the_run_continues(
    run, monkeypatch, cli, no_pictures
):
    """As a system that is short of memory ends it: with SIGKILL, and from outside."""
    parent = os.getpid()
    shutil.rmtree(run / "tables")  # so that the analysis is made again

    def killed(*given: object, **options: object) -> None:
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.chdir(run.parent)
    monkeypatch.setattr("anchorscope.parallel.default_workers", lambda: 2)
    with monkeypatch.context() as patch:
        patch.setattr("anchorscope.probes.cross_fit.fit_and_read_layer", killed)
        code, _, error = cli(*HALF, "--out", "run")
    assert code == 2 and "A process of the analysis was killed" in error
    assert "LOKY_MAX_CPU_COUNT" in error
    again(run)
    assert wrong_names(cli, run) == set()
