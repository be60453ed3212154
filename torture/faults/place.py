"""A small real world to break: a tiny random model, a few dozen questions, and four commands.

Every command is one that a user types. What it leaves behind is compared byte for byte with what
an undisturbed one left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.tiny import tiny_lm, tiny_tokenizer

from torture.faults.child import Command, Ended, Hook, command, import_all, modules_to
from torture.faults.points import counted

QUESTIONS = 72
_MODEL = ["--model", "model", "--data", "rivers.jsonl", "--verdicts", "verdicts.jsonl"]
_MODEL += ["--max-tokens", "4", "--shard", "18", "--device", "cpu", "--dtype", "float32"]
_MODEL += ["--threads", "1", "--prompt", "text"]
_RUN = ["--resamples", "100", "--fold-seeds", "1", "--folds", "3", "--evidence", "none"]
_STUDY = """title = "Two rivers"
data = ["rivers.jsonl"]

[options]
verdicts = "verdicts.jsonl"
max_tokens = 4
shard = 36
device = "cpu"
dtype = "float32"
threads = 1
prompt = "text"
resamples = 100
fold_seeds = 1
folds = 3
evidence = "none"

[[models]]
model = "model"
name = "first"

[[models]]
model = "other"
name = "second"
"""
Files = dict[str, bytes]


@dataclass(frozen=True)
class Job:
    """A command, what it is made of, and which of its files must come out the same."""

    name: str
    words: tuple[str, ...]  # without --out
    results: Callable[[Path], Files]


def _of_run(folder: Path) -> Files:
    """Every file that the numbers of a run are in."""
    kept = ("answers", "states", "evidence", "tables", "probes")
    files = [p for name in kept for p in (folder / name).rglob("*") if p.is_file()]
    return _read(folder, [*files, folder / "samples.parquet"])


def _of_study(folder: Path) -> Files:
    runs = [_of_run(folder / name).items() for name in ("first", "second")]
    both = {f"{n}/{name}": data for n, files in enumerate(runs) for name, data in files}
    return both | _read(folder, [folder / "study.csv", folder / "claims.csv"])


def _of_detector(folder: Path) -> Files:
    return _read(folder, [p for p in folder.iterdir() if p.is_file()])


def _read(folder: Path, files: list[Path]) -> Files:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in files}


JOBS = {
    job.name: job
    for job in (
        Job("collect", ("detect", "collect", *_MODEL), _of_run),
        Job("run", ("run", *_MODEL, *_RUN), _of_run),
        Job("train", ("detect", "train", "whole-collect", "--method", "probe"), _of_detector),
        Job("study", ("study", "rivers.toml"), _of_study),
    )
}


class Place:
    """A folder with the model, the questions, and an undisturbed result of every job asked for."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="torture-"))
        self._whole: dict[str, Files] = {}
        self.seconds: dict[str, float] = {}  # of each undisturbed job
        self.calls: dict[str, int] = {}  # of the file system, in each undisturbed job
        self._made = 0

    def __enter__(self) -> Place:
        pid = os.fork()  # the harness itself computes nothing: its children start clean
        if pid == 0:
            _make_world(self.folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def whole(self, job: str) -> Path:
        """The folder that an undisturbed command left."""
        out = self.folder / f"whole-{job}"
        if job not in self._whole:
            if job == "train":
                self.whole("collect")
            tally, modules = self.folder / f".calls.{job}", self.folder / f".modules.{job}"
            ended = self.run(job, out, hooks=(modules_to(modules),))
            assert ended.code == 0, ended.said
            self._whole[job] = JOBS[job].results(out)
            import_all(modules)
            again = self.new()  # as fast as every later one, and the first proof of equality
            ended = self.run(job, again, hooks=(counted(tally),))
            assert ended.code == 0 and not self.different(job, again), ended.said
            self.seconds[job], self.calls[job] = ended.seconds, tally.stat().st_size
        return out

    def new(self) -> Path:
        """A place where no folder is yet; what an earlier trial left is removed."""
        self._made += 1
        shutil.rmtree(self.folder / f"out-{self._made - 4}", ignore_errors=True)
        return self.folder / f"out-{self._made}"

    def copy(self, job: str) -> Path:
        """An undisturbed result, to be disturbed."""
        return Path(shutil.copytree(self.whole(job), self.new()))

    def begin(self, job: str, out: Path, *, hooks: tuple[Hook, ...] = ()) -> Command:
        """The job's command, under way."""
        return Command([*JOBS[job].words, "--out", str(out)], cwd=self.folder, hooks=hooks)

    def run(self, job: str, out: Path, *, hooks: tuple[Hook, ...] = ()) -> Ended:
        """The job's command, ended."""
        return self.begin(job, out, hooks=hooks).end()

    def type(self, *words: object) -> Ended:
        """Another command in the same place."""
        return command(*words, cwd=self.folder)

    def different(self, job: str, out: Path) -> list[str]:
        """The files that are not those of an undisturbed command; none where all is well."""
        self.whole(job)
        before, now = self._whole[job], JOBS[job].results(out)
        return sorted(n for n in {*before, *now} if before.get(n) != now.get(n))


def _make_world(folder: Path) -> None:
    for name, seed in (("model", 0), ("other", 1)):
        tiny_lm("llama", seed).save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    draw, names = random.Random(0), set()
    while len(names) < QUESTIONS:
        names.add("".join(draw.choice("bcdfglmnprst") + draw.choice("aeiou") for _ in range(3)))
    questions = [
        {"id": n, "question": f"Where does the river {n.title()} end?", "answers": ["sea"],
         "subject": n.title()}
        for n in sorted(names)
    ]  # fmt: skip
    verdicts = [
        {"id": f"rivers:all:{row['id']}", "right": n % 2} for n, row in enumerate(questions)
    ]
    for name, rows in (("rivers", questions), ("verdicts", verdicts)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "rivers.toml").write_text(_STUDY, encoding="utf-8")
