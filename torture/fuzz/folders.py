"""Folders of runs and of detectors from a stranger: forged, not only damaged."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
from kit.detect_worlds import two_pathways, write_run
from kit.show_fixture import make_run

from anchorscope.config import Config
from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.saved import Stored, read_folder, write_folder
from anchorscope.run_folder.manifest import read_markers
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from torture.fuzz.target import Target
from torture.fuzz.texts import part, seeded, text, value

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-folders-"))
TABLES = (
    "layers",
    "probes",
    "controls",
    "strict",
    "findings",
    "claims",
    "spans",
    "detector_claims",
)
PATHS = ("../x", "/etc/passwd", "states/../../x", "~/x", "a\x00b", "C:\\x", "x" * 300, "")


@cache
def run() -> Path:
    """A small finished run."""
    return make_run(PLACE / "run", layers=2, n=12, datasets={"atlas": "Atlas"})


@cache
def detector() -> Path:
    """A detector's folder."""
    collected = write_run(PLACE / "collected", [two_pathways(n=240)])
    made = Detector.train(RunView.open(collected), method="probe", folds=3, resamples=100)
    return made.save(PLACE / "detector")


def changed(r: Random, content: Any, depth: int = 4) -> Any:
    """The content with one value of it put in another's place."""
    if isinstance(content, dict) and content and depth and r.random() < 0.9:
        name = r.choice(list(content))
        return content | {name: changed(r, content[name], depth - 1)}
    if isinstance(content, list) and content and depth and r.random() < 0.9:
        at = r.randrange(len(content))
        return [*content[:at], changed(r, content[at], depth - 1), *content[at + 1 :]]
    return r.choice((value(r), r.choice(PATHS), -1, 10**18, True))


def _info(r: Random) -> Any:
    info = json.loads((run() / "run.json").read_text())
    info.pop("checksum", None)
    return changed(r, info | {"config": {"delta": "points", "data": ["atlas"]}, "identity": {}})


def check_info(given: Any) -> None:
    """run.json with a value put in another's place: a run that shows itself, or a sentence."""
    folder = PLACE / "info"
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(given))
    view = RunView.open(folder, unfinished_ok=True, collected_ok=True)
    _ = view.model_name, view.weights, view.titles, view.datasets, view.unit
    Config.restore(dict(view.config))


def _table(r: Random) -> tuple[str, bytes]:
    name = r.choice(TABLES)
    file = run() / "tables" / f"{name}.csv"
    lines = (file.read_text() if file.is_file() else "claim\nx\n").splitlines()[:4]
    cells = [line.split(",") for line in lines]
    for _ in range(r.randint(1, 3)):
        row = r.choice(cells)
        row[r.randrange(len(row))] = r.choice((part(r), "nan", "1e999", '"', "-", text(r)))
    written = "\n".join(",".join(row) for row in cells).encode()
    return name, written if r.random() < 0.8 else written + bytes([r.randint(128, 255)])


def check_table(given: tuple[str, bytes]) -> None:
    """A table with other cells is read with its columns, or refused."""
    name, data = given
    folder = PLACE / "tables-of"
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    shutil.copy(run() / "run.json", folder)
    file = folder / "tables" / f"{name}.csv"
    file.write_bytes(data)
    try:
        assert isinstance(getattr(RunView.open(folder, unfinished_ok=True), name), pd.DataFrame)
    finally:
        file.unlink()


def _samples(r: Random) -> tuple[str, list[Any]]:
    frame = _frame()
    column = r.choice(list(frame.columns))
    kind = r.random()
    odd: Any = [r.randint(-5, 10**6)] if kind < 0.3 else part(r) if kind < 0.6 else None
    return column, [odd] * len(frame) if kind < 0.9 else []


@cache
def _frame() -> pd.DataFrame:
    return pd.read_parquet(run() / "samples.parquet")


def check_samples(given: tuple[str, list[Any]]) -> None:
    """samples.parquet with another column: samples of sense, or a sentence."""
    column, cells = given
    folder = PLACE / "samples-of"
    folder.mkdir(exist_ok=True)
    shutil.copy(run() / "run.json", folder)
    frame = _frame().drop(columns=column) if not cells else _frame().assign(**{column: cells})
    frame.to_parquet(folder / "samples.parquet")
    for sample in RunView.open(folder, unfinished_ok=True).answers:
        assert isinstance(sample.id, str) and isinstance(sample.question.text, str)
        assert all(isinstance(position, int) for position in sample.exact_question)


def _listing(r: Random) -> tuple[bytes, str]:
    entry = {"name": r.choice((*PATHS, "samples.parquet")), "bytes": 3, "sha256": "0"}
    line = json.dumps(changed(r, entry) if r.random() < 0.8 else entry).encode()
    return line + bytes([r.randint(0, 255)] * r.choice((0, 0, 1))), r.choice(PATHS[:4])


def check_listing(given: tuple[bytes, str]) -> None:
    """A marker that lies: no file outside the folder is vouched for."""
    line, _ = given
    folder = PLACE / "listing"
    (folder / "markers").mkdir(parents=True, exist_ok=True)
    (folder / "markers" / "samples.parquet.json").write_bytes(line)
    for name in read_markers(folder):
        assert os.path.commonpath([folder, os.path.normpath(folder / name)]) == str(folder), name
    assert not Store(folder, info={}).has("samples.parquet")


def _about(r: Random) -> Any:
    about = json.loads((detector() / "detector.json").read_text())
    free = ("sha256", "checksum", "kind", "format")
    return changed(r, {name: of for name, of in about.items() if name not in free})


@cache
def _stored() -> Stored:
    return read_folder(detector())


def check_detector(given: Any) -> None:
    """A detector with another value in it and the checksums that belong to it."""
    folder = PLACE / "forged"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        write_folder(folder, Stored(_stored().tensors, given), "a card")
    except (TypeError, ValueError, RecursionError, UnicodeError):
        return  # it cannot be written at all
    loaded = Detector.load(folder)
    assert 0 <= loaded.threshold <= 1
    assert isinstance(loaded.name, str) and loaded.caution is not None


TARGETS = (
    Target(name="run.json", inputs=seeded(_info), check=check_info, share=5),
    Target(name="tables of runs", inputs=seeded(_table), check=check_table, share=1.5),
    Target(name="samples of runs", inputs=seeded(_samples), check=check_samples, share=0.6),
    Target(name="listings of runs", inputs=seeded(_listing), check=check_listing, share=4),
    Target(name="detectors", inputs=seeded(_about), check=check_detector, share=1.5),
)
