"""A dataset analysed while the next is read: the same bytes, the same errors, the same continuing."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from kit.rivers import contents, rivers

from anchorscope.pipeline import beside
from anchorscope.pipeline import run as run_module

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
def here(place, monkeypatch) -> Path:
    monkeypatch.chdir(place)
    return place


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


class Slow(beside.Beside):
    """As if the model read until all but the last dataset are analysed."""

    def __exit__(self, *error) -> None:
        while self._thread.is_alive() and len(self._spent) < 3 * (len(DATA) - 1):
            time.sleep(0.02)
        super().__exit__(*error)


def test_what_is_written_is_the_same(apart, here, cli, monkeypatch):
    """Every table, probe and sample; the first dataset analysed beside the reading, the second after."""
    monkeypatch.setattr(beside, "WHERE", "everywhere")
    monkeypatch.setattr(run_module, "Beside", Slow)
    code, _, error = cli(*ASKED, "--out", "slow")
    assert code == 0, error
    assert results(here / "slow") == results(apart)
    for stage in ("probes", "pathways", "evidence tables"):
        assert stages(here / "slow")[stage]["beside"] > 0
        assert stages(here / "slow")[stage]["seconds"] > 0  # those of the second
        assert "beside" not in stages(apart)[stage]
