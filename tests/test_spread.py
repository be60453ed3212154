"""Workers, Ray and ranks give the very files of one process, also after SIGKILL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.evidence_fixture import without_pictures
from kit.rivers import anchorscope_in, contents, finish, half_right, main_in, rivers

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.pipeline import executor
from anchorscope.pipeline.executor import check_spread, worker_environment

# Pieces that read before and with probes, other spans, and questions asked again. One thread in
# every way of spreading: sums depend on their number.
RUN = ("run", "--model", "model", "--data", "half.jsonl", "--max-tokens", "4", "--shard", "8",
       "--resamples", "100", "--fold-seeds", "1", "--folds", "3", "--dtype", "float32",
       "--device", "cpu", "--threads", "1", "--evidence", "patching,saliency", "--ablate", "spans",
       "--robust")  # fmt: skip
WORKERS = ("--workers", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The model, 48 questions, and the run of one undisturbed process: `alone`."""
    place = rivers(tmp_path_factory.mktemp("spread"))
    half_right(place, 48)
    with without_pictures():
        main_in(place, *RUN, "--out", "alone")
    return place


def command(place: Path, out: str, *words: str) -> subprocess.Popen[str]:
    return anchorscope_in(place, *RUN, "--out", out, *words)


def marker(run: Path, shard: int) -> Path:
    return run / f"markers/answers/{shard:05d}.parquet.json"


def killed_when(process: subprocess.Popen[str], file: Path) -> None:
    """Kills the command for good as soon as a file is there."""
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()  # its children may hold its pipes for a while


def kill_a_worker(process: subprocess.Popen[str]) -> None:
    """Kills the second worker when it has begun."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"worker 2 of 2 is process (\d+)", line):
            os.kill(int(match[1]), signal.SIGKILL)
            return
    raise AssertionError(process.communicate())


def same(place: Path, out: str) -> bool:
    return contents(place / out) == contents(place / "alone")


@pytest.mark.slow
def test_killed_workers_and_drivers_change_no_file(place):
    """The driver in the middle of reading; then, in the run that goes on, a worker."""
    killed_when(
        command(place, "killed", *WORKERS), place / "killed/markers/answers/00001.parquet.json"
    )
    assert not (place / "killed/samples.parquet").exists()
    process = command(place, "killed", *WORKERS)
    kill_a_worker(process)
    assert "a worker was lost" in finish(process)
    assert same(place, "killed")


@pytest.mark.slow
def test_a_killed_rank_changes_no_file(place):
    """Both find an empty place, and one of them begins the run; then a plain run finishes it."""
    ranks = [("--rank", number, "--world-size", "2") for number in "01"]
    other = command(place, "ranks", *ranks[1])
    killed_when(
        command(place, "ranks", *ranks[0]), place / "ranks/markers/answers/00002.parquet.json"
    )
    assert "finishes the run" in finish(other)
    finish(command(place, "ranks", *ranks[0]))
    assert not (place / "ranks/samples.parquet").exists()
    assert len(list((place / "ranks/answers").iterdir())) == 6
    with without_pictures():
        main_in(place, *RUN, "--out", "ranks")
    assert same(place, "ranks")
    assert "--rank" not in (place / "ranks/run.json").read_text()


@pytest.mark.slow
def test_a_killed_node_of_a_ray_cluster_changes_no_file(place):
    """Two Ray nodes with a worker each; one of them is killed, and the other goes on."""
    from ray.cluster_utils import Cluster

    quiet = {"include_dashboard": False, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=quiet)
    try:
        second = cluster.add_node(num_cpus=1)
        process = command(place, "node", "--ray", cluster.address, *WORKERS)
        while not marker(place / "node", 1).exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)
        finish(process)
    finally:
        cluster.shutdown()
    assert same(place, "node")


def test_a_worker_that_dies_every_time_ends_in_one_sentence(tmp_path, monkeypatch, cli):
    """Every process really dies when it gets its task; no more than three are started for it."""
    started: list[object] = []

    class Dying(executor.ProcessPoolExecutor):
        def __init__(self, *given, **options):
            started.append(self)
            assert len(started) < 9, "a lost worker is replaced without end"
            super().__init__(1)  # without an initializer, which would import torch

        def submit(self, work, *values):
            return super().submit(os._exit, 9)

    monkeypatch.setattr(executor, "ProcessPoolExecutor", Dying)
    words = ("--model", "model", "--data", "rivers.jsonl", "--device", "cpu", "--workers", 1)
    monkeypatch.chdir(rivers(tmp_path))
    code, _, error = cli("detect", "collect", *words, "--out", "dying")
    assert code == 2 and "ended 3 workers, so the run stops" in error
    assert "run the same command again" in error and len(started) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "--rank is 1 and --world-size None. Accepted: both or neither"),
        ({"rank": 2, "world_size": 2}, "a rank from 0 to the world size less 1"),
        ({"rank": 0, "world_size": 2, "workers": 2}, "without --workers and --ray"),
        ({"workers": 0}, "workers is 0. Accepted: 1 or more."),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options, message):
    with pytest.raises(UserError, match=message):
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
