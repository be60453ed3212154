"""Folders of runs and detectors from a stranger, and links, pipes and devices put into them."""

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
from typing import Any, NamedTuple

import numpy as np
from kit.detect_worlds import two_pathways, write_run

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import verify_detector
from anchorscope.errors import UserError
from anchorscope.pipeline.variants import check_reuse
from anchorscope.run_folder.manifest import verify_run
from anchorscope.run_folder.states import save_states
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show.report import page
from torture.hostile import value, within

PLACE = Path(tempfile.mkdtemp(prefix="torture-folders-"))
PATHS = ("../x", "/etc/passwd", "states/../../x", "~/x", "a\x00b", "C:\\x", "x" * 300, "")
SECRET = "a secret of the user's"
IDENTITY = {"model": "tiny", "seed": 0}
KINDS = ("file", "folder", "root", "parent", "same", "nowhere", "itself", "zero", "relative",
         "inside", "stdin", "pipe")  # fmt: skip


def changed(r: Random, content: Any, depth: int = 4) -> Any:
    """The content with one of its values replaced by a hostile one."""
    if isinstance(content, dict) and content and depth and r.random() < 0.9:
        name = r.choice(list(content))
        return content | {name: changed(r, content[name], depth - 1)}
    if isinstance(content, list) and content and depth and r.random() < 0.9:
        at = r.randrange(len(content))
        return [*content[:at], changed(r, content[at], depth - 1), *content[at + 1 :]]
    return r.choice((value(r), r.choice(PATHS), -1, 10**18, True))


@cache
def detector() -> Path:
    """A detector's folder."""
    collected = write_run(PLACE / "collected", [two_pathways(n=240)])
    made = Detector.train(RunView.open(collected), method="probe", folds=3, resamples=100)
    return made.save(PLACE / "detector")


@cache
def _run() -> Path:
    """A run folder with a table and states in it."""
    store = Store.open(PLACE / "whole", IDENTITY)
    with store.owned():
        store.write("tables/spans.csv", lambda file: file.write(b"dataset\n"))
        save_states(store, "states/clean/00000.safetensors", ["a"], np.ones((1, 2, 3), np.float32))
        about = {"model": {"name": "m"}, "datasets": [{"name": "d"}], "finished": True}
        store.save_info(about)
    return store.path


class Put(NamedTuple):
    """What is put where in a folder, and what is done with the folder then."""

    name: str
    kind: str
    work: str


def _place(put: Put, folder: Path, outside: Path) -> None:
    """Put a link, pipe or device in the place of whatever was there."""
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
        "itself": target, "zero": Path("/dev/zero"), "inside": folder / "tables/spans.csv",
        "relative": Path(os.path.relpath(outside / "secret.txt", target.parent)),
        "stdin": Path("/proc/self/fd/0"),
    }[put.kind]  # fmt: skip
    target.symlink_to(to)


def _read(folder: Path) -> str:
    view = RunView.open(folder, unfinished_ok=True)
    texts = [str(view.info), view.model_name]
    for name in ("layers", "claims"):
        with suppress(UserError):
            texts.append(getattr(view, name).to_csv())
    with suppress(UserError, KeyError):
        texts.append(page(view))
    return "".join(texts)


def _write(folder: Path) -> str:
    store = Store.open(folder, IDENTITY)
    with store.owned():
        store.write("tables/spans.csv", lambda file: file.write(b"other\n"))
        store.write("states/clean/00001.safetensors", lambda file: file.write(b"x"))
        store.save_info({"finished": True})
    return json.dumps(store.info)


RUN_WORK: dict[str, Callable[[Path], object]] = {
    "read": _read,
    "write": _write,
    "verify": lambda folder: [str(checked) for checked in verify_run(folder)],
    "reuse": lambda folder: check_reuse(str(folder), IDENTITY),
}
DETECTOR_WORK: dict[str, Callable[[Path], object]] = {
    "load": lambda folder: Detector.load(folder).id,
    "verify": lambda folder: [str(checked) for checked in verify_detector(folder, deep=True)],
    "save": lambda folder: Detector.load(detector()).save(folder),
}


def check_run(put: Put) -> None:
    """Nothing outside a run folder is read or written through what was put into it; no wait."""
    _check(put, _run(), RUN_WORK[put.work])


def check_detector(put: Put) -> None:
    """The same for a detector's folder."""
    _check(put, detector(), DETECTOR_WORK[put.work])


def _check(put: Put, whole: Path, work: Callable[[Path], object]) -> None:
    folder, outside = PLACE / "tried", PLACE / "outside"
    for path in (folder, outside):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, folder)
    shutil.copytree(_run(), outside / "run")
    (outside / "secret.txt").write_text(SECRET)
    before = _contents(outside)
    _place(put, folder, outside)
    shown = ""
    try:
        with within(10, clock=True):
            shown = str(work(folder))
    except UserError as error:
        shown = str(error)
        raise
    finally:
        assert _contents(outside) == before, "something outside was changed"
        assert SECRET not in shown, "something outside was read"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
