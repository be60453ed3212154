"""Workers, Ray and ranks give the very files of one process, also after SIGKILL."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from os import kill
from pathlib import Path

import pytest
from kit.rivers import collect, collect_here, contents, finish, rivers
from safetensors.numpy import load_file, save_file

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.pipeline import executor
from anchorscope.pipeline.executor import check_spread, worker_environment

NAMED = re.compile(r"worker (\d) of \d is process (\d+)")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The model, the questions, and what one undisturbed process makes of them: `alone`."""
    place = rivers(tmp_path_factory.mktemp("spread"))
    collect_here(place, "alone")
    return place


def workers_of(process: subprocess.Popen[str]) -> Iterator[int]:
    """The numbers of the worker processes, as the run names them."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := NAMED.search(line):
            yield int(match[2])


def same(place: Path, run: str) -> bool:
    return contents(place / run) == contents(place / "alone")


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_nothing_changes(place):
    process = collect(place, "--out", "killed", "--workers", "2")
    kill(next(workers_of(process)), signal.SIGKILL)
    said = finish(process)
    assert "a worker was lost" in said
    assert same(place, "killed")


def test_a_worker_that_dies_every_time_ends_in_one_sentence(place, monkeypatch):
    """Every process really dies when it gets its task; no more than three are started for it."""
    started: list[object] = []

    class Dying(executor.ProcessPoolExecutor):
        def __init__(self, *given, **options):
            started.append(self)
            assert len(started) < 9, "a lost worker is replaced without end"
            super().__init__(*given, **options)

        def submit(self, work, *values):
            return super().submit(os._exit, 9)

    monkeypatch.setattr(executor, "ProcessPoolExecutor", Dying)
    with pytest.raises(UserError, match="ended 3 workers, so the run stops") as error:
        collect_here(place, "dying", workers=1)
    assert "run the same command again" in str(error.value) and len(started) == 3


@pytest.mark.slow
def test_ranks_at_the_same_time_then_a_plain_run(place):
    """Both find an empty place, and one of them begins the run."""
    ranks = [
        collect(place, "--out", "ranks", "--rank", str(rank), "--world-size", "2")
        for rank in range(2)
    ]
    for process in ranks:
        assert "finishes the run" in finish(process)
    assert not (place / "ranks/samples.parquet").exists()
    answers = {path.name for path in (place / "ranks/answers").iterdir()}
    assert answers == {f"{number:05d}.parquet" for number in range(4)}
    collect_here(place, "ranks")
    assert same(place, "ranks")
    info = json.loads((place / "ranks/run.json").read_text())
    assert "--rank" not in info["command"] and "rank" not in info["identity"]


def test_a_worker_that_computes_something_else_is_refused(place):
    collect_here(place, "mixed", rank=0, world_size=2)
    fixed = place / "mixed/fixed-prompt.safetensors"
    states = load_file(fixed)["states"]
    states[2] *= 1.01
    save_file({"states": states}, fixed)
    with pytest.raises(UserError, match=r"states of a fixed prompt are not .* differ by 0\.01 of"):
        collect_here(place, "mixed", rank=1, world_size=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 1}, "--rank and --world-size go together"),
        ({"rank": 2, "world_size": 2}, "--rank is 2 of 2. Accepted: 0 to"),
        ({"rank": 0, "world_size": 2, "workers": 2}, "leave out --workers and --ray"),
        ({"workers": 0}, "workers is 0. Accepted: 1 or more."),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options, said):
    with pytest.raises(UserError, match=said):
        check_spread(Config(**options), None)


def test_workers_load_the_model_themselves():
    with pytest.raises(UserError, match="each loads the model itself"):
        check_spread(Config(workers=2), object())


def test_each_worker_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    config = Config(workers=2, gpus_per_worker=2)
    given = [worker_environment(config, place, 2)["CUDA_VISIBLE_DEVICES"] for place in range(2)]
    assert given == ["7,5", "3,1"]
    with pytest.raises(UserError, match="up to 2 workers here"):
        worker_environment(config, 0, 3)
    assert "OMP_NUM_THREADS" in worker_environment(Config(workers=2, device="cpu"), 0, 2)
