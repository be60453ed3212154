"""A model shared by two processes gives what it gives in one, and only one of them writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit import shared_model
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.errors import UserError
from anchorscope.models import load_model

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
