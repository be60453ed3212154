"""A study gives the same tables however it is spread, and whatever of it is killed on the way."""

from __future__ import annotations

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
RANKS = [["--rank", str(rank), "--world-size", "2"] for rank in range(2)]


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


def kill_everything(process: subprocess.Popen[str]) -> None:
    """As when a machine stops: the command and all that it started, at once."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def test_a_killed_study_ends_as_one_that_was_not(place: Path) -> None:
    """Killed in the middle of the second model, with nothing left to tidy up."""
    process = study(place, "killed", "--workers", "2")
    wait_for(process, place / "killed" / MODELS[1] / "answers" / "00002.parquet")
    kill_everything(process)
    assert not (place / "killed" / "study.html").exists()
    finish(study(place, "killed", "--ray", "local", "--workers", "2"))
    assert tables(place / "killed") == tables(place / "whole")


def test_ranks_of_which_one_is_killed_make_the_same_study(place: Path) -> None:
    first, second = (study(place, "ranks", *words) for words in RANKS)
    wait_for(first, place / "ranks" / "llama" / "answers" / "00002.parquet")
    kill_everything(first)
    assert "finishes the study" in finish(second)
    assert not (place / "ranks" / "study.html").exists()
    finish(study(place, "ranks", *RANKS[0]))
    finish(study(place, "ranks"))
    assert tables(place / "ranks") == tables(place / "whole")
