"""A small study of two random models, their verdicts drawn at random."""

from __future__ import annotations

import csv
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anchorscope.datasets import load_questions
from anchorscope.pipeline.study.file import Study, StudyModel
from kit.tiny import tiny_lm, tiny_tokenizer

DATA = ("atlas", "atlas-compare")
LIMIT = 100
OPTIONS = {
    "limit": LIMIT, "resamples": 100, "folds": 3, "fold_seeds": 1, "max_tokens": 4,
    "prompt": "text", "evidence": "none",
}  # fmt: skip


def random_verdicts(file: Path, data: tuple[str, ...] = DATA, limit: int = LIMIT) -> Path:
    """A file with a verdict drawn for every question."""
    rng = random.Random(0)
    with file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["id", "right"])
        for name in data:
            rows.writerows([q.id, rng.choice([0, 1])] for q in load_questions(name, limit=limit))
    return file


class Maker:
    """Makes a tiny random model when it is called, and counts the calls."""

    def __init__(self, architecture: str, seed: int = 0) -> None:
        self.architecture, self.seed, self.calls = architecture, seed, 0
        self.last: weakref.ref[Any] | None = None  # the model it made, while anybody holds it

    def __call__(self) -> tuple[Any, Any]:
        self.calls += 1
        lm = tiny_lm(self.architecture, self.seed)
        self.last = weakref.ref(lm)
        return lm, tiny_tokenizer()


def tiny_study(folder: Path, makers: dict[str, Callable[[], Any]]) -> Study:
    """The study of these models, all in one panel."""
    verdicts = random_verdicts(folder / "verdicts.csv")
    return Study(
        title="Two <tiny> models",
        data=DATA,
        models=tuple(
            StudyModel(name=name, model=name, panel="Tiny & random", make=make)
            for name, make in makers.items()
        ),
        options={**OPTIONS, "verdicts": str(verdicts)},
    )
