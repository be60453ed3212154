"""What is done with a finished run: verdicts corrected, states exported, its power asked for."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
from kit.rivers import HALF, contents, stored_states

from anchorscope.answers.verdicts import doubtful, safe_cell
from anchorscope.run_folder.view import RunView

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def place(finished_place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, 64 questions of which it answers half, and their run: a copy to work in."""
    return Path(shutil.copytree(finished_place, tmp_path_factory.mktemp("after") / "place"))


@pytest.fixture
def run(here: Path) -> Path:
    return here / "run"


def test_doubtful_verdicts_corrected_and_taken_again(run, cli, here):
    """The whole way: the file, a correction, and a run that computes no state again."""
    code, said, error = cli("verdicts", "run", "--out", "doubtful.csv", "--most", "6")
    assert code == 0, error
    rows = list(csv.DictReader((here / "doubtful.csv").open(encoding="utf-8")))
    assert 0 < len(rows) <= 6
    samples = {sample.id: sample for sample in RunView.open(run).answers}
    assert [row["id"] for row in rows] == [s.id for s, _ in doubtful(list(samples.values()))][:6]
    for row in rows:
        assert row["answer"].lstrip("'") == samples[row["id"]].answer.text
        assert row["right"] == str(int(samples[row["id"]].verdict == "right"))
        row["right"], row["abstained"] = ("0" if row["right"] == "1" else "1"), "0"
    pd.DataFrame(rows).to_csv("doubtful.csv", index=False)

    code, _, error = cli(*shlex.split(said.splitlines()[-1])[1:])  # the command that it names
    assert code == 0, error
    again = here / "run-corrected"
    assert cli(*HALF, "--verdicts", "doubtful.csv", "--out", "fresh")[0] == 0
    assert contents(again) == contents(here / "fresh")
    stages = json.loads((again / "run.json").read_text())["stages"]
    assert stages["answers and states"]["tokens"] == 0
    after = {sample.id: sample.verdict for sample in RunView.open(again).answers}
    changed = {id for id, verdict in after.items() if verdict != samples[id].verdict}
    assert changed == {row["id"] for row in rows}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--reuse", "nowhere"), "--reuse nowhere is no finished run on this machine."),
        (
            ("--reuse", "run", "--seed", "1"),
            "--reuse run differs in more than the verdicts (questions, seed).",
        ),
    ],
)
def test_a_run_that_cannot_be_taken_over(run, cli, here, words, said):
    code, _, error = cli(*HALF, *words, "--out", "other")
    assert code == 2 and said in error
    assert not (here / "other").exists()


@pytest.mark.parametrize("name", ["clean", "knockout"])
def test_exported_states_are_the_runs_own_for_their_own_library(run, cli, here, name):
    probelab = pytest.importorskip("probelab")
    own = stored_states(run, name)
    wrong = {s.id: int(s.verdict == "wrong") for s in RunView.open(run).answers if s.usable}
    for to in ("numpy", "hf", "probelab"):
        code, said, error = cli("export", "run", "--to", to, "--out", f"{name}-{to}",
                                "--passes", name)  # fmt: skip
        assert code == 0, error
        assert "To load them:" in said
    ids = pd.read_csv(f"{name}-numpy/samples.csv")["id"].tolist()
    assert sorted(ids) == sorted(wrong)
    stacked, labels = np.stack([own[id] for id in ids]), [wrong[id] for id in ids]

    mapped = np.load(f"{name}-numpy/{name}.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap) and mapped.dtype == stacked.dtype
    assert np.array_equal(mapped, stacked)
    assert np.load(f"{name}-numpy/labels.npy").tolist() == labels

    data = datasets.load_from_disk(f"{name}-hf").with_format("numpy")
    assert data["id"][:].tolist() == ids and data["label"][:].tolist() == labels
    for layer in range(1, stacked.shape[1] + 1):
        assert np.array_equal(data[f"{name}_{layer}"][:], stacked[:, layer - 1])

    loaded = probelab.storage.load_hdf5(f"{name}-probelab/{name}.h5")
    assert np.array_equal(loaded.data.numpy(), stacked.astype(np.float32))
    for layer in loaded.layers:
        assert np.array_equal(loaded.select("l", layer).data.numpy(), stacked[:, layer - 1])
    probe = probelab.probes.Logistic(max_iter=5).fit(loaded.select("l", 1), labels)
    assert len(probe.predict(loaded.select("l", 1))) == len(ids)


def test_what_cannot_be_exported(run, cli, here):
    for words, said in [
        (("--to", "onnx", "--out", "x"), "Unknown format 'onnx'. Accepted: numpy, hf, probelab."),
        (("--to", "numpy", "--out", "run"), "run exists and is not an empty folder."),
        (("--to", "numpy", "--out", "x", "--passes", "dream"), "Unknown pass 'dream'. Accepted:"),
        (("--to", "numpy", "--out", "x", "--data", "nq"), "Unknown dataset 'nq'. Accepted: half."),
    ]:
        code, _, error = cli("export", "run", *words)
        assert code == 2 and said in error
    assert not (here / "x").exists()


def test_power_says_that_there_are_too_few_and_what_the_probe_reads(run, cli):
    code, printed, error = cli("power", "run", "--worlds", "10", "--out", "power.csv")
    assert code == 0, error
    now, _, fourfold = pd.read_csv("power.csv").to_dict("records")
    view = RunView.open(run)
    verdicts = [sample.verdict for sample in view.answers if sample.usable]
    assert now["finding"] == "too-few"
    assert (now["right"], now["wrong"]) == (verdicts.count("right"), verdicts.count("wrong"))
    (layer,) = view.findings["layer"]
    probes = view.probes.set_index("layer")
    assert now["layer"] == layer and now["auroc"] == pytest.approx(probes.loc[layer, "auroc"])
    assert probes["auroc"].max() == probes.loc[layer, "auroc"]
    assert 0.25 < now["shuffled_auroc"] < 0.75
    usable = len(verdicts)
    assert f"half: too-few ({usable} usable samples; below 150 no finding" in printed
    assert "beyond reach" in printed
    assert np.isnan(now["loss"])  # by the rule, whatever is planted
    assert (now["usable"], fourfold["usable"]) == (usable, 4 * usable)
    assert fourfold["loss_low"] > 0  # 256 samples are enough to ask


def test_what_power_cannot_be_asked_for(run, cli):
    for words, said in [
        (("--worlds", "3"), "Invalid value for '--worlds'"),
        (("--data", "nq"), "Unknown dataset 'nq'. Accepted: half."),
    ]:
        code, _, error = cli("power", "run", *words)
        assert code == 2 and said in error


def test_a_cell_that_would_be_computed_is_text():
    assert [safe_cell(t) for t in ("=1+1", "@x", "Paris", "")] == ["'=1+1", "'@x", "Paris", ""]
