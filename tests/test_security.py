"""The guards of SECURITY.md, and that every test it names is there."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
import tomllib
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import fsspec
import pytest
from kit.show_fixture import add_claims, make_run
from kit.tiny import save_tiny
from packaging.requirements import Requirement
from packaging.version import Version

import anchorscope
from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.pipeline.study.file import study_of
from anchorscope.run_folder.manifest import read_listing, read_markers
from anchorscope.run_folder.remote import Remote
from anchorscope.show.report import page
from anchorscope.show.view_page import write_view
from anchorscope.web.server import Access, Guard

ROOT = Path(__file__).parents[1]
SOURCES = sorted(Path(anchorscope.__file__).parent.rglob("*.py"))
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
CALLS = {"eval", "exec", "system", "popen", "literal_eval", "unsafe_load"}


def test_no_source_file_unpickles_evaluates_or_opens_a_shell():
    assert len(SOURCES) > 100
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [getattr(node, "module", None) or "", *(item.name for item in node.names)]
                assert not FORBIDDEN & {name.split(".")[0] for name in modules}, file
            if isinstance(node, ast.Call):
                _check_call(node, file)


def _check_call(node: ast.Call, file: Path) -> None:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    owner = getattr(getattr(node.func, "value", None), "id", "")
    model = name == "eval" and not node.args  # torch's module.eval()
    assert name not in CALLS or model, (file, node.lineno)
    assert not (owner in ("torch", "joblib") and name == "load"), (file, node.lineno)
    for keyword in node.keywords:
        true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        assert not (keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and true), file


def test_hostile_text_adds_nothing_that_acts_to_a_page(tmp_path):
    text = '"><img src=x onerror=alert(1)></script><script>alert(1)</script><!--'
    pages = {}
    for kind, own in (("harmless", "Who is it?"), ("hostile", text)):
        title = own.replace("/", "")
        folder = make_run(tmp_path / kind, model=title, datasets={"atlas": title}, layers=2, n=8,
                          question=own, answer=own)  # fmt: skip
        info = json.loads((folder / "run.json").read_text())
        info |= {"command": own, "git": own, "date": own, "config": {own: own}}
        info |= {"versions": {own: own}, "stages": {own: {"seconds": 1.0}}}
        info["datasets"][0]["dropped"] = {own: 1}
        (folder / "run.json").write_text(json.dumps(info))
        run = add_claims(folder)
        view = write_view([run], tmp_path / f"{kind}.html").read_text(encoding="utf-8")
        pages[kind] = [_Elements(page(run)), _Elements(view)]
    for harmless, hostile in zip(*pages.values(), strict=True):
        assert hostile.found <= harmless.found
        assert hostile.policies == harmless.policies and len(hostile.policies) == 1
        assert "default-src 'none'" in str(hostile.policies[0])


class _Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its security policies."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.policies: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *sorted(name for name, _ in attrs)))
        if "http-equiv" in dict(attrs):
            self.policies.append(dict(attrs)["content"])


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "states/../../x"])
def test_no_name_in_a_listing_leaves_the_folder(tmp_path, name):
    entry = json.dumps({"name": name, "bytes": 3, "sha256": "0" * 64})
    folder = tmp_path / "run"
    (folder / "markers").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"files": {name: "3 0", "x": "3 0"}}))
    (folder / "markers" / "x.json").write_text(entry)
    assert {*read_listing(folder)} == {"x"} and not read_markers(folder)


def test_a_key_of_a_store_that_leaves_the_folder_is_not_copied(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    remote = Remote("memory://bucket/run")
    found = {"/bucket/run/run.json": b"{}", "/bucket/run/../../../../evil": b"x"}
    for key, data in found.items():
        store.store[key] = type(store).open(store, "/made", "wb").__class__(store, key, data)
    assert "run.json" in remote.fetch() and not any(".." in name for name in remote.fetch())
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "..", "figures"])
def test_a_studys_model_cannot_be_a_path(name):
    with pytest.raises(UserError, match="a folder cannot be called so"):
        study_of({"data": ["atlas"], "models": [{"model": "m", "name": name}]}, "s.toml")


def test_remote_code_is_asked_for_and_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(UserError):
        load_model(str(tmp_path / "none"), trust_remote_code=True)
    assert "will be run on this machine, with your rights" in caplog.text
    caplog.clear()
    with pytest.raises(UserError):
        load_model(str(tmp_path / "none"))
    assert not caplog.text


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_nobody_at_a_terminal_is_asked_to_run_code(tmp_path, monkeypatch, cli, command):
    """Where nothing was said, transformers asks; a yes would run what lies in the folder."""
    folder, seen = tmp_path / "model", tmp_path / "seen"
    save_tiny(folder)
    (folder / "own.py").write_text(f"open({str(seen)!r}, 'w')", encoding="utf-8")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": questions.append(text) or "y")
    monkeypatch.chdir(tmp_path)
    code, _, error = cli(command, "--model", folder, "--device", "cpu")
    assert code == 2
    assert "--trust-remote-code" in error
    assert not questions
    assert not seen.exists()


def test_every_reader_of_a_model_is_told_whether_its_code_may_run():
    """Of what is said elsewhere, these names of options say it."""
    passed_on, readers = {"options", "named", "where"}, 0
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            owner = getattr(getattr(getattr(node, "func", None), "value", None), "id", "")
            if isinstance(node, ast.Call) and owner.startswith("Auto"):
                if getattr(node.func, "attr", "") not in ("from_pretrained", "from_config"):
                    continue
                readers += 1
                names = {item.arg or getattr(item.value, "id", "") for item in node.keywords}
                assert names & (passed_on | {"trust_remote_code"}), (file, node.lineno)
    assert readers >= 6


def test_floors_lie_above_the_known_holes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    floors: dict[str, list[Version]] = {}
    for required in map(Requirement, lines):
        least = [Version(one.version) for one in required.specifier if one.operator == ">="]
        floors.setdefault(required.name.lower(), []).extend(least)
    advisories = json.loads((ROOT / "scripts" / "advisories.json").read_text())
    assert len(advisories["floors"]) >= 12
    for hole in advisories["floors"]:
        assert min(floors[hole["package"]]) >= Version(hole["fixed"]), hole
    text = (ROOT / "SECURITY.md").read_text()
    for hole in advisories["open"]:  # one that a floor closes is open no longer
        assert min(floors[hole["package"]]) < Version(hole["fixed"]) and hole["why"], hole
        assert hole["id"] in text
    assert all(
        hole["source"].startswith("https://")
        for item in ("floors", "open")
        for hole in advisories[item]
    )


def heard(guard, headers, method="GET", path="/healthz"):
    """What an ASGI guard sends for one request."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(guard(scope, receive, send))
    return sent


async def plain(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def test_every_answer_of_the_server_has_a_policy():
    guard = Guard(plain, Access(secret="Bearer right", open_paths=("/healthz",)))
    for path, status in (("/healthz", 200), ("/v1/models", 401)):
        start = heard(guard, [], path=path)[0]
        policy = dict(start["headers"])[b"content-security-policy"]
        assert start["status"] == status and b"default-src 'none'" in policy


HOSTS = [[], [b"evil.example"], [b"127.0.0.1"], [b"127.0.0.1:2"], [b"127.0.0.1:1", b"evil.example"]]


@pytest.mark.parametrize("hosts", HOSTS)
def test_other_host_is_refused(hosts):
    """By DNS rebinding a page of another site reaches 127.0.0.1 under its own name."""
    guard = Guard(plain, Access(hosts=["127.0.0.1:1"]))
    assert heard(guard, [(b"host", b"127.0.0.1:1")])[0]["status"] == 200
    assert heard(guard, [(b"host", host) for host in hosts])[0]["status"] == 421


@pytest.mark.parametrize("length", [b"\xb2", b"9" * 5000, b"-1", b"1_0", b" 5"])
def test_a_length_that_is_no_number_is_refused(length):
    guard = Guard(plain, Access(hosts=["127.0.0.1:1"]))
    headers = [(b"host", b"127.0.0.1:1"), (b"content-length", length)]
    assert heard(guard, headers, path="/")[0]["status"] == 413


@pytest.mark.parametrize("sent", [b"a b", b"x" * 65, b'"}', b"\xff", b""])
def test_the_log_takes_no_text_of_a_client(sent):
    finished = []
    guard = Guard(plain, Access(hosts=["127.0.0.1:1"]), finished.append)
    headers = [(b"host", b"127.0.0.1:1")]
    path = '/\n{"id": "forged"}' + "x" * 1000
    (start, _) = heard(guard, [*headers, (b"x-request-id", sent)], path=path)
    own = dict(start["headers"])[b"x-request-id"].decode()
    assert re.fullmatch("[0-9a-f]{32}", own)
    line = json.dumps(finished[0])
    assert "\n" not in line and json.loads(line)["id"] == own and len(line) < 500
    (start, _) = heard(guard, [*headers, (b"x-request-id", b"run-1.2_a")])
    assert (b"x-request-id", b"run-1.2_a") in start["headers"]
