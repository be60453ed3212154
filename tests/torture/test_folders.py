"""Forged folders of runs and detectors, and states whose headers lie."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
from kit.show_fixture import make_run

from anchorscope.config import Config
from anchorscope.datasets.state_arrays import check_arrays, open_arrays
from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import FILES, Stored, read_folder, write_folder
from anchorscope.run_folder.manifest import read_markers
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from torture.folders import (
    DETECTOR_WORK,
    KINDS,
    PATHS,
    PLACE,
    RUN_WORK,
    Put,
    changed,
    check_detector,
    check_run,
    detector,
)  # fmt: skip
from torture.hostile import fuzz, part, seeded, text, value

TABLES = ("layers", "probes", "controls", "strict", "findings", "claims", "spans")
IN_RUNS = (
    "run.json", "manifest.jsonl", "owner.json", "samples.parquet", "markers", "markers/new.json",
    "markers/tables", "markers/tables/spans.csv.json", "states", "states/clean", "tables",
    "states/clean/00000.safetensors", "tables/spans.csv", "tables/layers.csv", "figures", "probes",
    "new", ".x.partial", "report.html", "robust", "robust/a",
)  # fmt: skip
KEPT = ("clean", "knockout", "neutral", "z", "states", "id", "popularity", "answer_only")
SIZES = (0, 1, 2, 3, 10**9, 10**18, 2**63 - 1, 2**64, -1, 1.5, "2")


@cache
def _run() -> Path:
    return make_run(PLACE / "run", layers=2, n=12, datasets={"atlas": "Atlas"})


def _empty_run(name: str) -> Path:
    """A folder with the run.json of a finished run, and nothing else."""
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tables").mkdir(parents=True)
    shutil.copy(_run() / "run.json", folder)
    return folder


def _info(r: Random) -> Any:
    info = json.loads((_run() / "run.json").read_text())
    info.pop("checksum", None)
    return changed(r, info | {"config": {"delta": "points", "data": ["atlas"]}, "identity": {}})


def _check_info(info: Any) -> None:
    folder = _empty_run("info")
    (folder / "run.json").write_text(json.dumps(info))
    view = RunView.open(folder, unfinished_ok=True, collected_ok=True)
    _ = view.model_name, view.weights, view.titles, view.datasets, view.unit
    Config.restore(dict(view.config))


def _table(r: Random) -> tuple[str, bytes]:
    name = r.choice(TABLES)
    file = _run() / "tables" / f"{name}.csv"
    lines = (file.read_text() if file.is_file() else "claim\nx\n").splitlines()[:4]
    cells = [line.split(",") for line in lines]
    for _ in range(r.randint(1, 3)):
        row = r.choice(cells)
        row[r.randrange(len(row))] = r.choice((part(r), "nan", "1e999", '"', "-", text(r)))
    written = "\n".join(",".join(row) for row in cells).encode()
    return name, written if r.random() < 0.8 else written + bytes([r.randint(128, 255)])


def _check_table(given: tuple[str, bytes]) -> None:
    folder = _empty_run("tables")
    (folder / "tables" / f"{given[0]}.csv").write_bytes(given[1])
    assert isinstance(getattr(RunView.open(folder, unfinished_ok=True), given[0]), pd.DataFrame)


def _samples(r: Random) -> pd.DataFrame:
    """samples.parquet with a column of something else, or without it."""
    frame = pd.read_parquet(_run() / "samples.parquet")
    column, kind = r.choice(list(frame.columns)), r.random()
    if kind > 0.9:
        return frame.drop(columns=column)
    odd: Any = [r.randint(-5, 10**6)] if kind < 0.3 else part(r) if kind < 0.6 else None
    return frame.assign(**{column: [odd] * len(frame)})


def _check_samples(frame: pd.DataFrame) -> None:
    folder = _empty_run("samples")
    frame.to_parquet(folder / "samples.parquet")
    for sample in RunView.open(folder, unfinished_ok=True).answers:
        assert isinstance(sample.id, str) and isinstance(sample.question.text, str)
        assert all(isinstance(position, int) for position in sample.exact_question)


def _marker(r: Random) -> bytes:
    entry = {"name": r.choice((*PATHS, "samples.parquet")), "bytes": 3, "sha256": "0"}
    line = json.dumps(changed(r, entry) if r.random() < 0.8 else entry).encode()
    return line + bytes([r.randint(0, 255)] * r.choice((0, 0, 1)))


def _check_marker(data: bytes) -> None:
    """A marker that lies vouches for no file."""
    folder = PLACE / "listing"
    (folder / "markers").mkdir(parents=True, exist_ok=True)
    (folder / "markers" / "samples.parquet.json").write_bytes(data)
    assert read_markers(folder).keys() <= {"samples.parquet"}
    assert not Store(folder, info={}).has("samples.parquet")


def _about(r: Random) -> Any:
    about = json.loads((detector() / "detector.json").read_text())
    free = ("sha256", "checksum", "kind", "format")
    return changed(r, {name: fact for name, fact in about.items() if name not in free})


def _check_about(about: Any) -> None:
    """A detector with another value in it, and the checksums that belong to it."""
    folder = PLACE / "forged"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        write_folder(folder, Stored(read_folder(detector()).tensors, about), "a card")
    except (TypeError, ValueError, RecursionError, UnicodeError):
        return  # it cannot be written at all
    loaded = Detector.load(folder)
    assert 0 <= loaded.threshold <= 1
    assert isinstance(loaded.name, str) and loaded.caution is not None


def _safetensors(r: Random) -> bytes:
    ids = r.choice(('["a", "b"]', "[", "[1, [2]]", "{}", "9", '["a"'))
    tensors: dict[str, Any] = {
        "states": {"dtype": "F32", "shape": [2, 2, 3], "data_offsets": [0, 48]},
        "__metadata__": {"ids": ids, "id": ids} if r.random() < 0.9 else value(r),
    }
    for name in r.sample(KEPT, r.randint(1, 5)) if r.random() < 0.7 else ():
        shape = [r.choice(SIZES) if r.random() < 0.15 else r.randint(1, 3) for _ in range(3)]
        start = r.choice((0, 0, 8, 36, -8, 10**18))
        tensors[name] = {
            "dtype": r.choice(("F32", "F32", "F16", "BF16", "I64", "BOOL", "x", None, 3)),
            "shape": shape[: r.choice((1, 3, 3))],
            "data_offsets": [start, start + r.choice((48, 36, 4, 2**62))],
        }
    head = json.dumps(tensors).encode()
    length = len(head) if r.random() < 0.85 else r.choice((0, 1, 10**6, 2**40, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + head + bytes(r.choice((0, 36, 48, 48, 108)))


def _check_arrays(data: bytes) -> None:
    """Arrays from elsewhere take no more memory than the file's own size allows."""
    file = PLACE / "states.safetensors"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        check_arrays(open_arrays(file))
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 64 << 20, f"{most} bytes for a file of {len(data)}"


def _check_shard(data: bytes) -> None:
    file = PLACE / "states" / "states" / "clean" / "00000.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    bank = StateBank(PLACE / "states", ["a", "b"])
    assert len(bank.all_layers("clean")) == len(bank.layer("clean", 1)) == 2


def _put(r: Random, names: tuple[str, ...], work: dict[str, Any]) -> Put:
    return Put(r.choice(names), r.choice(KINDS), r.choice(list(work)))


test_run_json = fuzz(seeded(_info), _check_info)
test_tables_of_runs = fuzz(seeded(_table), _check_table)
test_samples_of_runs = fuzz(seeded(_samples), _check_samples)
test_markers_of_runs = fuzz(seeded(_marker), _check_marker)
test_states_of_runs = fuzz(seeded(_safetensors), _check_shard)
test_states_from_elsewhere = fuzz(seeded(_safetensors), _check_arrays)
test_detectors = fuzz(seeded(_about), _check_about, few=12)
test_links_in_runs = fuzz(seeded(lambda r: _put(r, IN_RUNS, RUN_WORK)), check_run)
test_links_in_detectors = fuzz(
    seeded(lambda r: _put(r, (*FILES, "new", ".x.partial"), DETECTOR_WORK)), check_detector
)
