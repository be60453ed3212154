"""Links, pipes and devices in folders of strangers: nothing outside is read or written, no wait."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.saved import FILES
from anchorscope.detect.deployed.verify import verify_detector
from anchorscope.errors import UserError
from anchorscope.pipeline.variants import check_reuse
from anchorscope.run_folder.manifest import verify_run
from anchorscope.run_folder.states import save_states
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show.report.page import page
from torture.fuzz.folders import detector
from torture.fuzz.target import Target, within
from torture.fuzz.texts import seeded

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-links-"))
SECRET, SECONDS = "a secret of the user's", 10.0
IDENTITY = {"model": "tiny", "seed": 0}
NAMES = (
    "run.json", "manifest.jsonl", "owner.json", "samples.parquet", "markers",
    "markers/tables", "markers/tables/spans.csv.json", "states", "states/clean", "tables",
    "states/clean/00000.safetensors", "tables/spans.csv", "tables/layers.csv", "figures", "probes",
    "markers/new.json", "new", ".x.partial", "report.html", "robust", "robust/a",
)  # fmt: skip


class Put(NamedTuple):
    """What is put where in a folder, and what is done with the folder then."""

    name: str
    kind: str
    what: str


@cache
def _run() -> Path:
    """A run that was begun: a table and states are in it."""
    import numpy as np

    store = Store.open(PLACE / "whole", IDENTITY)
    with store.owned():
        store.write("tables/spans.csv", lambda file: file.write(b"dataset\n"))
        save_states(store, "states/clean/00000.safetensors", ["a"], np.ones((1, 2, 3), np.float32))
        about = {"model": {"name": "m"}, "datasets": [{"name": "d"}], "finished": True}
        store.save_info(about)
    return store.path


def _outside() -> Path:
    """A folder with files that nobody may read or change."""
    folder = PLACE / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    shutil.copytree(_run(), folder / "run")
    return folder


def _facts(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _place(put: Put, folder: Path, outside: Path) -> None:
    """Puts the link, pipe or device in the place of whatever was there."""
    target = folder / put.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    if put.kind == "pipe":
        os.mkfifo(target)
        return
    same = outside / "run" / put.name
    to = {
        "file": outside / "secret.txt", "folder": outside, "root": Path("/"), "parent": folder,
        "same": same if same.exists() else outside / "run", "nowhere": outside / "none",
        "itself": target, "zero": Path("/dev/zero"), "passwd": Path("/etc/passwd"),
        "relative": Path(os.path.relpath(outside / "secret.txt", target.parent)),
        "inside": folder / "tables/spans.csv", "stdin": Path("/proc/self/fd/0"),
    }[put.kind]  # fmt: skip
    target.symlink_to(to)


KINDS = ("file", "folder", "root", "parent", "same", "nowhere", "itself", "zero", "passwd",
         "relative", "inside", "stdin", "pipe")  # fmt: skip


def _read(folder: Path) -> str:
    view = RunView.open(folder, unfinished_ok=True)
    said = [str(view.info), view.model_name]
    for name in ("layers", "claims"):
        with suppress(UserError):
            said.append(getattr(view, name).to_csv())
    with suppress(UserError, KeyError):
        said.append(page(view))
    return "".join(said)


def _write(folder: Path) -> str:
    store = Store.open(folder, IDENTITY)
    with store.owned():
        store.has("tables/spans.csv")
        store.write("tables/spans.csv", lambda file: file.write(b"other\n"))
        store.write("states/clean/00001.safetensors", lambda file: file.write(b"x"))
        store.save_info({"finished": True})
    return json.dumps(store.info)


def _verify(folder: Path) -> str:
    return "".join(map(str, verify_run(folder)))


def _reuse(folder: Path) -> str:
    check_reuse(str(folder), IDENTITY)
    return ""


WORK: dict[str, Callable[[Path], str]] = {
    "read": _read, "write": _write, "verify": _verify, "reuse": _reuse,
}  # fmt: skip


def check_run(given: Put) -> None:
    """A run folder with something odd in it is refused, or used without what lies outside."""
    _tried(given, _run(), WORK[given.what])


def _load(folder: Path) -> str:
    return Detector.load(folder).id


def _verified(folder: Path) -> str:
    return "".join(map(str, verify_detector(folder, deep=True)))


def _saved(folder: Path) -> str:
    return str(Detector.load(detector()).save(folder))


DETECTORS: dict[str, Callable[[Path], str]] = {
    "load": _load, "verify": _verified, "save": _saved,
}  # fmt: skip


def check_detector(given: Put) -> None:
    """The same of a detector's folder."""
    _tried(given, detector(), DETECTORS[given.what])


def _tried(given: Put, whole: Path, work: Callable[[Path], str]) -> None:
    folder, outside = PLACE / "tried", _outside()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    before = _facts(outside)
    _place(given, folder, outside)
    said = ""
    try:
        with within(SECONDS, clock=True):
            said = work(folder)
    except UserError as error:
        said = str(error)
        raise
    finally:
        assert _facts(outside) == before, "something outside was changed"
        assert SECRET not in said and "root:x:" not in said, "something outside was read"


def _put(names: tuple[str, ...], what: tuple[str, ...]) -> Callable[[Random], Put]:
    return lambda r: Put(r.choice(names), r.choice(KINDS), r.choice(what))


TARGETS = (
    Target(name="links in runs", inputs=seeded(_put(NAMES, tuple(WORK))), check=check_run, share=3),
    Target(
        name="links in detectors",
        inputs=seeded(_put((*FILES, "new", ".x.partial"), tuple(DETECTORS))),
        check=check_detector,
        share=2,
    ),
)
