"""Tiny random models of five architectures, the bundled one, and a folder that is not home."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: no test waits for a network
os.environ["TRITON_INTERPRET"] = "1"  # before torch imports it: kernels run without a GPU

import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from kit.tiny import ARCHITECTURES, tiny_lm, tiny_tokenizer

from anchorscope.cli import main
from anchorscope.models import Model, load_model

# A machine that others use may stop for longer than hypothesis's 200 ms.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Files of minutes go first: a worker that begins one when all else is done keeps everybody waiting.
LONG = (
    "test_spread.py", "test_examples.py", "test_overlap.py", "test_pipeline_evidence.py",
    "test_docs.py", "test_finished_run.py", "test_after_a_run.py", "test_study_run.py",
    "test_own_states.py", "test_robust.py", "test_tutorial.py", "test_site.py",
    "test_engine_architectures.py", "test_bad_input_runs.py", "test_simulate.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may touch the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def bundled() -> Model:
    """The bundled model in float32, converted once into a cache beside the repository's venv."""
    cache = Path(os.environ.get("ANCHORSCOPE_CACHE", Path(__file__).parents[1] / ".cache"))
    os.environ["ANCHORSCOPE_CACHE"] = str(cache)
    return load_model("bundled", device="cpu", dtype="float32")


@pytest.fixture(params=ARCHITECTURES)
def tiny(request: pytest.FixtureRequest) -> Model:
    """A tiny random model in float32, one of each architecture."""
    return load_model(tiny_lm(request.param), tokenizer=tiny_tokenizer())


@pytest.fixture
def tiny_llama() -> Model:
    return load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs a command line; gives exit code, output and error text."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["anchorscope", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            main()
        out, error = capsys.readouterr()
        code = stop.value.code
        return (0 if code is None else int(code)), out, error

    return run


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Any]:
    """Two shards of samples of the planted model, which is leased."""
    from kit.planted import planted_model, planted_samples

    from anchorscope.engine.lease import Lease
    from anchorscope.evidence.shards import Shards
    from anchorscope.run_folder.store import Store

    model = planted_model()
    samples = planted_samples(model)
    with Lease(model) as lease:
        store = Store.open(tmp_path / "run", {"a": 1})
        yield Shards(lease, store, [samples[:5], samples[5:]], seed=0)


@pytest.fixture(scope="module")
def app_state(tmp_path_factory: pytest.TempPathFactory):
    """The app's state of a tiny model whose answers are hostile text, over a run of its own."""
    from kit.inspection_fixture import hostile_model, make_inspected

    from anchorscope.app.page import AppState
    from anchorscope.run_folder.view import RunView

    model = hostile_model()
    app_state = AppState(
        model, RunView.open(make_inspected(tmp_path_factory.mktemp("app") / "run", model))
    )
    app_state.warm()
    return app_state


@pytest.fixture(scope="module")
def address(app_state) -> Iterator[str]:
    """Where the app is served while a file's tests last."""
    from kit.web_server import app_here

    with app_here(app_state) as where:
        yield where


@pytest.fixture(scope="session")
def evidence_run(tmp_path_factory: pytest.TempPathFactory):
    """A simulated run with every piece of evidence, which no test changes."""
    from kit.evidence_fixture import simulated_run

    return simulated_run(tmp_path_factory.mktemp("evidence") / "run")


@pytest.fixture(scope="module")
def browser():
    """A running Chromium."""
    from kit.browser import chromium

    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def finished_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, 64 questions of which it answers half, and their `run`.

    One for all of xdist's workers, and so none may change it.
    """
    from kit.rivers import HALF, half_right, main_in, rivers

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    with FileLock(f"{folder}.lock"):
        if not (folder / "whole").exists():
            folder.mkdir()
            place = rivers(folder)
            half_right(place, short=True)
            main_in(place, *HALF, "--out", "run")
            (folder / "whole").touch()
    return folder / "rivers"


@pytest.fixture
def no_pictures() -> Iterator[None]:
    """Runs of this process write neither figures nor a report, which take longest."""
    from kit.evidence_fixture import without_pictures

    with without_pictures():
        yield


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `place` that a file of tests has made for itself, as the working directory."""
    monkeypatch.chdir(place)
    return place
