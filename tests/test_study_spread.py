"""A study gives the same tables however it is spread, and whatever of it is killed on the way."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from kit.rivers import anchorscope_in, finish
from kit.study_fixture import OPTIONS, random_verdicts
from kit.tiny import tiny_lm, tiny_tokenizer

pytestmark = pytest.mark.slow
MODELS = ("llama", "qwen3")
WAYS = {
    "alone": [],
    "workers": ["--workers", "2"],
    "ray": ["--ray", "local", "--workers", "2"],
}
RANKS = [["--rank", str(rank), "--world-size", "2"] for rank in range(2)]
QUICK = ["quick", "--limit", "80", "--option", "resamples=100", "--option", "fold_seeds=1",
         "--option", "threads=1", "--option", "shard=16", "--option", "dtype=float32"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of two tiny models, and what one undisturbed process made of it."""
    place = tmp_path_factory.mktemp("study")
    options = {**OPTIONS, "verdicts": str(random_verdicts(place / "verdicts.csv"))}
    # As many threads in every way of spreading: sums depend on their number.
    options |= {"shard": 16, "threads": 1}
    lines = ['title = "Tiny"', 'data = ["atlas", "atlas-compare"]', "[options]"]
    lines += [f"{name} = {value!r}" for name, value in options.items()]
    for name in MODELS:
        tiny_lm(name).save_pretrained(place / name)
        tiny_tokenizer().save_pretrained(place / name)
        lines += ["[[models]]", f"model = '{name}'", "panel = 'Tiny'"]
    (place / "tiny.toml").write_text("\n".join(lines))
    finish(study(place, "whole"))
    assert len(tables(place / "whole")) > 12
    return place


def study(place: Path, out: str, *words: str) -> subprocess.Popen[str]:
    return anchorscope_in(place, "study", "tiny.toml", "--out", out, *words)


def tables(out: Path) -> dict[str, bytes]:
    """Every table of a study and its runs, by name; costs.csv has seconds in it."""
    files = [out / "study.csv", out / "claims.csv", *out.glob("*/tables/*")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def wait_for(process: subprocess.Popen[str], file: Path) -> None:
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def kill_driver(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def kill_everything(process: subprocess.Popen[str]) -> None:
    """As when a machine stops: the command and all that it started, at once."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.communicate()


KILLS = {"driver": kill_driver, "everything": kill_everything}


@pytest.mark.parametrize("kill", list(KILLS))
@pytest.mark.parametrize("way", list(WAYS))
def test_a_killed_study_ends_as_one_that_was_not(place: Path, way: str, kill: str) -> None:
    """Killed in the middle of each model, with nobody left to tidy up."""
    out = f"{way}-{kill}"
    for model, shard in zip(MODELS, ("00003", "00002"), strict=True):
        process = study(place, out, *WAYS[way])
        wait_for(process, place / out / model / "answers" / f"{shard}.parquet")
        KILLS[kill](process)
        assert not (place / out / "study.html").exists()
    finish(study(place, out, *WAYS[way]))
    assert tables(place / out) == tables(place / "whole")


@pytest.mark.parametrize("way", ["workers", "ray"])
def test_a_killed_worker_changes_no_table(place: Path, way: str) -> None:
    process = study(place, f"worker-{way}", *WAYS[way])
    assert process.stderr is not None
    match = None
    for line in process.stderr:
        if match := re.search(r"worker 2 of 2 is process (\d+)", line):
            psutil.Process(int(match[1])).kill()
            break
    assert match
    assert "worker 2 was lost" in finish(process)
    assert tables(place / f"worker-{way}") == tables(place / "whole")


def test_ranks_of_which_one_is_killed_make_the_same_study(place: Path) -> None:
    first, second = (study(place, "ranks", *words) for words in RANKS)
    wait_for(first, place / "ranks" / "llama" / "answers" / "00002.parquet")
    kill_driver(first)
    assert "finishes the study" in finish(second)
    assert not (place / "ranks" / "study.html").exists()
    finish(study(place, "ranks", *RANKS[0]))
    finish(study(place, "ranks"))
    assert tables(place / "ranks") == tables(place / "whole")


def test_the_quick_study_is_the_same_in_every_way(tmp_path: Path) -> None:
    """The bundled model, as `anchorscope study quick` asks it."""
    for way, words in WAYS.items():
        finish(anchorscope_in(tmp_path, "study", *QUICK, "--out", way, *words))
    for process in [anchorscope_in(tmp_path, "study", *QUICK, "--out", "ranks", *w) for w in RANKS]:
        finish(process)
    finish(anchorscope_in(tmp_path, "study", *QUICK, "--out", "ranks"))
    alone = tables(tmp_path / "alone")
    assert len(alone) > 10
    for way in ("workers", "ray", "ranks"):
        assert tables(tmp_path / way) == alone, way
