"""A run folder in an object store: a real server on this machine, asked by other code."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from kit.rivers import collect_here, rivers

from anchorscope.errors import UserError
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

boto3 = pytest.importorskip("boto3")
pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
ONE = {"model": "bundled", "limit": 8}


@pytest.fixture(scope="module")
def bucket():
    """An object store that speaks S3, and its client; the environment says where it is."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="runs")
        yield client
    server.stop()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))


def names(client, prefix: str) -> dict[str, int]:
    """The objects under a prefix and their sizes, asked for by boto3."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="runs", Prefix=prefix)
    rows = [row for page in pages for row in page.get("Contents", ())]
    return {row["Key"].removeprefix(prefix): row["Size"] for row in rows}


def test_a_file_is_in_the_store_before_its_marker(bucket):
    store = Store.open("s3://runs/one", ONE)
    store.write("a/b.txt", lambda file: file.write(b"whole"))
    assert names(bucket, "one/").keys() == {"run.json", "a/b.txt", "markers/a/b.txt.json"}
    marker = bucket.get_object(Bucket="runs", Key="one/markers/a/b.txt.json")["Body"].read()
    assert json.loads(marker)["bytes"] == 5
    shutil.rmtree(store.path)  # another machine
    assert Store.open("s3://runs/one", ONE).has("a/b.txt")


def test_files_that_a_kill_left_unsent_are_sent_at_the_next_start(bucket):
    store = Store.open("s3://runs/two", ONE)
    Store(store.path).write("a", lambda file: file.write(b"x"))  # without the store's knowledge
    assert "a" not in names(bucket, "two/")
    Store.open("s3://runs/two", ONE)
    assert {"a", "markers/a.json"} <= names(bucket, "two/").keys()


def test_a_run_removed_from_the_store_leaves_the_copy(bucket):
    store = Store.open("s3://runs/three", ONE)
    store.write("a", lambda file: file.write(b"x"))
    for name in names(bucket, "three/"):
        bucket.delete_object(Bucket="runs", Key=f"three/{name}")
    assert not Store.open("s3://runs/three", ONE).has("a")


def test_a_second_owner_is_refused_and_a_killed_one_on_this_machine_is_not_waited_for(
    bucket, tmp_path, monkeypatch
):
    first, here = Store.open("s3://runs/four", ONE), os.environ["ANCHORSCOPE_CACHE"]
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "another machine"))
    second = Store.open("s3://runs/four", ONE)
    with first.owned():
        claim = bucket.get_object(Bucket="runs", Key="four/owner.json")["Body"].read()
        with (
            pytest.raises(UserError, match="runs/four is being written by process"),
            second.owned(),
        ):
            raise AssertionError
    assert "owner.json" not in names(bucket, "four/")
    bucket.put_object(Bucket="runs", Key="four/owner.json", Body=claim)  # as a kill leaves it
    with pytest.raises(UserError, match=r"remove s3://runs/four/owner\.json"), second.owned():
        raise AssertionError
    monkeypatch.setenv("ANCHORSCOPE_CACHE", here)
    with Store.open("s3://runs/four", ONE).owned():
        assert "owner.json" in names(bucket, "four/")
    assert "owner.json" not in names(bucket, "four/")


def test_no_bucket_is_one_sentence(bucket):
    with pytest.raises(UserError, match="s3://nowhere/run cannot be used"):
        Store.open("s3://nowhere/run", ONE)
    with pytest.raises(UserError, match="There is no run under s3://runs/none"):
        RunView.open("s3://runs/none")


@pytest.mark.slow
def test_two_machines_share_a_run_in_the_store(bucket, tmp_path, monkeypatch):
    """Two ranks with caches of their own, as on two machines; a third place finishes."""
    place = rivers(tmp_path)
    collect_here(place, "alone")
    for rank in (0, 1):
        monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / f"machine-{rank}"))
        collect_here(place, "s3://runs/rivers", rank=rank, world_size=2)
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "third"))
    collect_here(place, "s3://runs/rivers")
    objects = names(bucket, "rivers/")
    states = [path for path in (place / "alone/states").rglob("*") if path.is_file()]
    assert len(states) > 8
    for path in states:
        name = path.relative_to(place / "alone").as_posix()
        body = bucket.get_object(Bucket="runs", Key=f"rivers/{name}")["Body"].read()
        assert body == path.read_bytes()
    assert "run.json" in objects and "owner.json" not in objects
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "reader"))
    view = RunView.open("s3://runs/rivers", collected_ok=True)
    assert len(view.answers) == 8 and (view.path / "states/clean/00000.safetensors").is_file()
