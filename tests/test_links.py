"""Links, pipes and devices in folders of runs and detectors: what came of them, one fact each."""

from __future__ import annotations

import os
import shutil

import pytest
from torture import folders as links
from torture.folders import Put, detector

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import FILES
from anchorscope.errors import UserError
from anchorscope.run_folder.disk import refuse_unsafe, unsafe_entries
from anchorscope.run_folder.store import Store


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("tables", "folder", "write"), ("states/clean", "folder", "write"), ("", "folder", ""),
        ("run.json", "same", "read"), ("markers/new.json", "pipe", "read"),
        ("markers/new.json", "pipe", "write"), ("manifest.jsonl", "pipe", "write"),
        ("manifest.jsonl", "zero", "write"), ("markers", "itself", "write"),
        ("new", "nowhere", "read"), ("states", "root", "read"),
        ("tables/spans.csv", "file", "read"), ("run.json", "same", "reuse"),
    ],
)  # fmt: skip
def test_a_run_with_a_way_out_is_refused_before_anything_is_opened(name, kind, what, tmp_path):
    """Before: files written outside, a wait for ever, or the memory filled from /dev/zero."""
    if name:
        with pytest.raises(UserError, match=r"is a (link|pipe).*it is not opened"):
            links.check_run(Put(name, kind, what))
        return
    store = Store.open(tmp_path / "run", {"model": "tiny"})  # the folder itself may be a link
    (tmp_path / "link").symlink_to(store.path)
    Store.open(tmp_path / "link", {"model": "tiny"})


def test_verify_names_what_leads_outside_and_opens_nothing(tmp_path, cli):
    store = Store.open(tmp_path / "run", {"model": "tiny"})
    os.mkfifo(store.path / "manifest.jsonl")
    (store.path / "out").symlink_to("/etc/passwd")
    (store.path / "copy.json").symlink_to("run.json")  # to a file of its own: nothing is wrong
    code, out, error = cli("verify", store.path)
    assert code == 1 and "Traceback" not in error
    assert "manifest.jsonl: it is a pipe" in out and "out of the folder, to /etc/passwd" in out
    assert [path.name for path, _ in unsafe_entries(store.path)] == ["manifest.jsonl", "out"]
    (store.path / "out").unlink()
    (store.path / "manifest.jsonl").unlink()
    refuse_unsafe(store.path)


@pytest.mark.parametrize("kind", links.KINDS)
@pytest.mark.parametrize("name", FILES[:2])
def test_a_detector_of_links_is_refused(name, kind):
    with pytest.raises(UserError):
        links.check_detector(Put(name, kind, "load"))


def test_a_detector_whose_file_is_a_folder_is_refused(tmp_path):
    for name in FILES[:2]:
        folder = shutil.copytree(detector(), tmp_path / name)
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(UserError, match="No detector could be read"):
            Detector.load(folder)


def test_a_snapshot_of_the_hubs_cache_is_made_of_links_and_is_read(tmp_path):
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b/snapshots/c"
    shutil.copytree(detector(), blobs)
    snapshot.mkdir(parents=True)
    for name in FILES:
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert Detector.load(snapshot).id == Detector.load(detector()).id
    (tmp_path / "elsewhere").write_bytes((blobs / FILES[0]).read_bytes())
    (snapshot / FILES[0]).unlink()
    (snapshot / FILES[0]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of the folder"):
        Detector.load(snapshot)
