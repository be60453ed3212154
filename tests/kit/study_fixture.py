"""A small study of two random models, their verdicts drawn at random."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from anchorscope.datasets import load_questions
from anchorscope.pipeline.study.file import Study, StudyModel
from kit.tiny import save_tiny

DATA = ("atlas", "atlas-compare")
LIMIT = 90
OPTIONS = {
    "limit": LIMIT, "resamples": 100, "folds": 3, "fold_seeds": 1, "max_tokens": 4,
    "prompt": "text", "evidence": "none",
}  # fmt: skip


def random_verdicts(file: Path, data: tuple[str, ...] = DATA, limit: int = LIMIT) -> Path:
    """Write a file with a random verdict for every question, as many right as wrong."""
    rng = random.Random(0)
    with file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["id", "right"])
        for name in data:
            ids = [question.id for question in load_questions(name, limit=limit)]
            rows.writerows([id, n % 2] for n, id in enumerate(rng.sample(ids, len(ids))))
    return file


def tiny_study(folder: Path, architectures: dict[str, str]) -> Study:
    """A study of random models by name, saved in the folder, all in one panel."""
    verdicts = random_verdicts(folder / "verdicts.csv")
    for name, architecture in architectures.items():
        save_tiny(folder / name, architecture)
    return Study(
        title="Two <tiny> models",
        data=DATA,
        models=tuple(
            StudyModel(name=name, model=str(folder / name), panel="Tiny & random")
            for name in architectures
        ),
        options={**OPTIONS, "verdicts": str(verdicts)},
    )
