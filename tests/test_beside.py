"""A dataset analysed while the next is read: the same bytes, errors, and a run that goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from kit.rivers import contents, rivers

import anchorscope
from anchorscope.errors import UserError
from anchorscope.parallel import stop_workers
from anchorscope.pipeline import run as run_module
from anchorscope.pipeline.checks import recompute
from anchorscope.pipeline.spread import beside
from anchorscope.pipeline.spread.spent import Spent, shared_out
from anchorscope.probes import at_once
from anchorscope.probes.at_once import FitProcess

DATA = ("north", "south")
ASKED = (
    "run", "--model", "model", "--data", ",".join(f"{name}.jsonl" for name in DATA),
    "--verdicts", "verdicts.jsonl", "--limit", "all", "--max-tokens", "4", "--resamples", "100",
    "--fold-seeds", "1", "--folds", "3", "--dtype", "float32", "--device", "cpu", "--prompt",
    "text", "--shard", "30", "--threads", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and two question sets, with verdicts that say wrong of every other."""
    folder, draw, verdicts = rivers(tmp_path_factory.mktemp("beside")), random.Random(0), []
    for name in DATA:
        sounds = [a + b for a in "bcdfglmnprst" for b in "aeiou"]
        names = ["".join(draw.sample(sounds, 3)) for _ in range(60)]
        rows = [
            {"id": of, "question": f"Where does the river {of.title()} end?", "answers": ["sea"],
             "subject": of.title()}
            for of in names
        ]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        verdicts += [{"id": f"{name}:all:{of}", "right": n % 2} for n, of in enumerate(names)]
    text = "\n".join(map(json.dumps, verdicts))
    (folder / "verdicts.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def apart(here, cli, monkeypatch) -> Path:
    """The run without any of it; made by the first test that asks for it."""
    monkeypatch.setattr(beside, "WHERE", "nowhere")
    if not (here / "apart").exists():
        code, _, error = cli(*ASKED, "--out", "apart")
        assert code == 0, error
    return here / "apart"


def results(run: Path) -> dict[str, bytes]:
    probes = {str(p): p.read_bytes() for p in (run / "probes").rglob("*") if p.is_file()}
    return contents(run) | {name.removeprefix(str(run)): of for name, of in probes.items()}


def stages(run: Path) -> dict[str, dict[str, float]]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["stages"]


def own_workers() -> list[psutil.Process]:
    """The processes that this one has for its work, as far as they are alive."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # gone, or ended and not yet fetched
            found += [child] if "popen_loky" in " ".join(child.cmdline()) else []
    return found


class Slow(beside.Beside):
    """As if the model read until all but the last dataset are analysed."""

    def __exit__(self, *error) -> None:
        # The first step starts the processes; six of each dataset follow, in the datasets' order.
        while not all(step.done() for step in self._steps[: 1 + 6 * (len(DATA) - 1)]):
            time.sleep(0.02)
        super().__exit__(*error)


def test_what_is_written_is_the_same(apart, here, cli, monkeypatch):
    """Every table, probe and sample; a dataset's stages in threads that go on side by side."""
    monkeypatch.setattr(beside, "WHERE", "everywhere")
    monkeypatch.setattr(run_module, "Beside", Slow)
    code, _, error = cli(*ASKED, "--out", "slow")
    assert code == 0, error
    assert results(here / "slow") == results(apart)
    assert psutil.wait_procs(own_workers(), timeout=60)[1] == []  # nobody has a use for them now
    for stage in beside.STAGES:
        assert stages(here / "slow")[stage]["beside"] > 0
        assert "beside" not in stages(apart)[stage]


def test_seconds_of_stages_add_up_to_those_of_the_run():
    """Two stages at once after the reading, which ends at 10, share a second; before it none."""
    spent = [Spent("probes", 2, 6), Spent("pathways", 6, 16), Spent("probes", 12, 14),
             Spent("evidence tables", 11, 16), Spent("evidence tables", 18, 19)]  # fmt: skip
    given = shared_out(spent, read=10)
    # 10-11 pathways alone; 11-12, 14-16 two; 12-14 three; 16-18 nobody; 18-19 one.
    assert given["probes"] == pytest.approx((4, 2 / 3))
    assert given["pathways"] == pytest.approx((4, 1 + 0.5 + 2 / 3 + 1))
    assert given["evidence tables"] == pytest.approx((0, 0.5 + 2 / 3 + 1 + 1))
    assert sum(late for _, late in given.values()) == pytest.approx(19 - 10 - 2)
    assert shared_out([], read=3) == {}


@pytest.mark.slow
def test_fits_made_in_a_process_of_their_own_give_the_same_numbers(apart, here, cli, monkeypatch):
    """As where the model is on a GPU: all layers at once, beside the reading and after it."""
    made: dict[str, int] = {}
    ask = FitProcess.made

    def counted(self, work):
        result = ask(self, work)
        lane = threading.current_thread().name.split("_")[0]  # its threads' names go on
        made[lane] = made.get(lane, 0) + len(result or ())
        return result

    monkeypatch.setattr(FitProcess, "made", counted)
    monkeypatch.setattr(run_module, "fit_device", lambda lease: "cpu")
    monkeypatch.setattr(beside, "WHERE", "everywhere")
    monkeypatch.setattr(run_module, "Beside", Slow)
    code, _, error = cli(*ASKED, "--out", "at_once")
    assert code == 0, error
    blocks = json.loads((here / "at_once/run.json").read_text())["model"]["blocks"]
    assert json.loads((here / "at_once/run.json").read_text())["fits_on"] == "cpu"
    # Probes; refits and distances; the probe of the question alone. Too few for `awareness`.
    times = {"probes": 2, "pathways": 4, "evidence": 2}
    assert made == {f"fits of {stage}": count * blocks for stage, count in times.items()}
    for table in sorted((apart / "tables").glob("*.csv")):
        one, other = (pd.read_csv(of) for of in (table, here / "at_once/tables" / table.name))
        pd.testing.assert_frame_equal(one, other, rtol=1e-4, atol=1e-4)
    code, said, _ = cli("verify", "at_once", "--deep")
    assert code == 0 and "the same bytes" in said
    monkeypatch.setattr(recompute, "_fit_device", lambda view: None)
    code, said, _ = cli("verify", "at_once", "--deep")
    assert code == 0 and "equal to rounding" in said, said


@pytest.mark.parametrize(
    ("device", "total", "place"),
    [("cuda:0", 600, "cuda:0"), ("cuda:0", 599, None), ("cpu", 600, None), ("mps", 600, None)],
)
def test_a_gpu_makes_fits_where_two_thirds_of_it_are_not_weights(device, total, place, monkeypatch):
    lm = torch.nn.Linear(49, 1)  # 50 numbers, 200 bytes
    lease: Any = SimpleNamespace(model=SimpleNamespace(device=torch.device(device), lm=lm))
    about = SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert beside.fit_device(lease) == place
    monkeypatch.setattr(beside, "FITS", "cores")
    assert beside.fit_device(lease) is None


@pytest.mark.slow
def test_a_process_of_fits_that_is_killed_leaves_them_to_the_cores(apart, here, cli, monkeypatch):
    """As by a system that is short of memory: the run ends as one without such a process."""

    def killed(device: str) -> bool:
        os._exit(9)

    monkeypatch.setattr(at_once, "_can_fit", killed)
    monkeypatch.setattr(run_module, "fit_device", lambda lease: "cpu")
    monkeypatch.setattr(beside, "WHERE", "everywhere")
    code, _, error = cli(*ASKED, "--out", "killed")
    assert code == 0, error
    assert results(here / "killed") == results(apart)
    assert json.loads((here / "killed/run.json").read_text())["fits_on"] == "cores"
    code, said, _ = cli("verify", "killed", "--deep")
    assert code == 0 and "the same bytes" in said


def test_a_mistake_found_beside_is_one_sentence(here, cli, monkeypatch):
    """As if the first dataset could not be analysed; the second is read to its end all the same."""

    def fail(*given: object, **how: object) -> None:
        raise UserError("north cannot be analysed.")

    monkeypatch.setattr(beside, "WHERE", "everywhere")
    monkeypatch.setattr(beside, "readings_of", fail)
    code, _, error = cli(*ASKED, "--out", "failed")
    assert code == 2
    assert error.splitlines()[-1] == "Error north cannot be analysed."
    assert "Traceback" not in error
    assert len(list((here / "failed/answers").glob("*.parquet"))) == 4


BESIDE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from anchorscope.cli import main
from anchorscope.pipeline import shard
from anchorscope.pipeline.spread import beside
beside.WHERE = "everywhere"
read = shard.ShardReader.samples
def slowly(self, of):
    if of.number == 3:
        time.sleep(300)  # a model that is far slower than the analysis
    return read(self, of)
shard.ShardReader.samples = slowly
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_while_both_go_on_and_continued(apart, here, cli, number):
    """Ended when the first dataset's probes are there: nothing is lost, no process is left."""
    environment = os.environ | {"PYTHONPATH": str(Path(anchorscope.__file__).parents[1])}
    out, said = here / f"ended-{number.name}", here / f"said-{number.name}.txt"
    command = [sys.executable, "-c", BESIDE, *ASKED, "--out", out.name]
    with said.open("w") as file:
        how = {"cwd": here, "env": environment, "stdout": file, "stderr": file}
        process = subprocess.Popen(command, **how, start_new_session=True)
    while process.poll() is None and not list((out / "probes").glob("north/*.json")):
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal: the workers hear it too
    else:
        process.send_signal(number)
    process.wait(timeout=120)
    assert "Traceback" not in said.read_text(encoding="utf-8")
    if number == signal.SIGKILL:  # nobody was there to end them
        for worker in workers:
            worker.kill()
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    code, _, error = cli(*ASKED, "--out", out.name)
    assert code == 0, error
    assert results(out) == results(apart)


def test_an_error_while_the_model_is_loaded_ends_the_processes(here, cli, monkeypatch):
    """They start meanwhile, and nobody should wait for what they import."""
    there: list[psutil.Process] = []

    def fail(*_: object, **__: object) -> None:
        before = time.monotonic()
        while len(there) < 2 and time.monotonic() - before < 60:
            there[:] = own_workers()
        raise UserError("The model is not here.")

    stop_workers()
    monkeypatch.setattr(beside, "WHERE", "everywhere")
    monkeypatch.setattr("anchorscope.pipeline.model.load_model", fail)
    code, _, error = cli(*ASKED, "--out", "failed")
    assert code == 2
    assert "The model is not here." in error
    assert len(there) >= 2
    _, alive = psutil.wait_procs(there, timeout=10)
    assert not alive
