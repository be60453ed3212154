"""A model shared by two processes gives what it gives in one, and only one of them writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kit import shared_model
from kit.architectures import build
from kit.tiny import tiny_lm, tiny_tokenizer
from kit.versions import older

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.models.tensor_parallel import _check_shared_evenly
from anchorscope.pipeline.collect import collect

HERE = Path(__file__).parent


def torchrun(*command: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """A command in two processes that know each other."""
    paths = [str(HERE), str(HERE.parent / "src")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*start, "--standalone", *command], env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of tiny models by architecture."""
    home = tmp_path_factory.mktemp("models")

    def of(architecture: str) -> Path:
        place = home / architecture
        if not place.exists():
            tiny_lm(architecture).save_pretrained(place)
            tiny_tokenizer().save_pretrained(place)
        return place

    return of


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_two_processes_give_what_one_gives(architecture, folder, tmp_path):
    place = folder(architecture)
    done = torchrun(str(HERE / "kit" / "shared_model.py"), str(place), str(tmp_path))
    assert done.returncode == 0, done.stderr
    one = shared_model.results(load_model(place, dtype="float32", device="cpu"))
    for number in range(2):
        two = np.load(tmp_path / f"{number}.npz")
        for name, values in one.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(two[name], values, atol=2e-5, rtol=1e-4, err_msg=name)
            else:
                np.testing.assert_array_equal(two[name], values, err_msg=name)
    assert one["failed"].size == 0


@pytest.mark.slow
def test_out_of_memory_in_one_process_shrinks_the_batches_of_all(folder, tmp_path):
    place, script = folder("llama"), str(HERE / "kit" / "shared_model.py")
    done = torchrun(script, str(place), str(tmp_path), "15")
    assert done.returncode == 0, done.stderr
    first, second = (np.load(tmp_path / f"{number}.npz") for number in range(2))
    assert second["times"] > 0 and first["times"] == 0
    model = load_model(place, dtype="float32", device="cpu")
    cut = shared_model.Intervention(name="k")
    states = shared_model.engine_states(model, shared_model.SAMPLES, cut).numpy()
    np.testing.assert_allclose(first["knockout"], states, atol=2e-5, rtol=1e-4)
    np.testing.assert_array_equal(first["knockout"], second["knockout"])


def test_one_process_alone_is_told_how_to_start_more(folder, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match="torchrun --nproc-per-node 2"):
        load_model(folder("llama"), device="tensor-parallel")


@pytest.mark.parametrize(
    ("architecture", "processes", "said"),
    [("gpt2", 2, "no tensor-parallel plan for gpt2"), ("llama", 3, "cannot share 4 heads")],
)
def test_a_model_that_cannot_be_shared_is_refused(architecture, processes, said, monkeypatch):
    monkeypatch.setattr("anchorscope.ranks.count", lambda: processes)
    with pytest.raises(UserError, match=said):
        _check_shared_evenly(build(architecture).config, "somewhere")


@pytest.mark.skipif(older("transformers", "5.21"), reason="earlier releases are asked another way")
def test_one_process_writes_and_all_see_the_same_folder(folder, tmp_path):
    """A file listed twice, or a process that took another turn, would show or hang."""
    out, place = tmp_path / "run", str(folder("llama"))
    asked = ["--data", "atlas", "--limit", "6", "--dtype", "float32", "--max-tokens", "4"]
    how = ["-m", "anchorscope", "detect", "collect", "--model", place, *asked]
    done = torchrun(*how, "--device", "tensor-parallel", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Ready for") == 1
    assert "samples.parquet" in json.loads((out / "run.json").read_text())["files"]
    alone = tmp_path / "alone"
    collect(place, out=alone, config=Config(data=("atlas",), limit=6, dtype="float32",
                                            max_tokens=4, device="cpu"))  # fmt: skip
    texts = [pd.read_parquet(run / "samples.parquet")["answer"].tolist() for run in (out, alone)]
    assert texts[0] == texts[1]
