"""A local stand-in for the hub's HTTP API: repositories, commits, large files, downloads.

It serves the requests of `huggingface_hub` to upload and download a folder, and keeps everything
in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import yaml

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """The repositories of the stand-in, and the requests it got."""

    token: str = "hf_right"
    address: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)  # name: visibility, files
    large: dict[str, bytes] = field(default_factory=dict)  # by sha256
    asked: list[str] = field(default_factory=list)  # "POST /api/repos/create"
    # Gets the number, status, headers and body of an answer; returns what is sent in its place.
    lie: Callable[[int, int, dict[str, str], bytes], bytes | None] | None = None

    def files(self, name: str) -> dict[str, bytes]:
        """The files of a repository."""
        return self.repositories[name]["files"]


@contextmanager
def hub(**facts: Any) -> Iterator[Hub]:
    """Run the stand-in on a free port of the loopback address until the block ends."""
    state = Hub(**facts)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def reached(state: Hub, cache: Path, **more: Any) -> Iterator[None]:
    """Point `huggingface_hub` to this stand-in and to `cache` until the block ends."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    there = more | {
        "ENDPOINT": state.address,
        "HUGGINGFACE_CO_URL_TEMPLATE": state.address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_CACHE": str(cache),
    }
    environment = patch.dict(os.environ, HF_TOKEN=state.token, no_proxy="127.0.0.1")
    with patch.multiple(constants, **there), environment:
        close_session()
        yield
        close_session()


def _handler(state: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PUT(self) -> None:
            self._serve("PUT")

        def do_GET(self) -> None:
            self._serve("GET")

        def do_HEAD(self) -> None:
            self._serve("HEAD")

        def _serve(self, verb: str) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.asked.append(f"{verb} {path}")
            allowed = self.headers.get("Authorization") == f"Bearer {state.token}"
            if not allowed and verb != "PUT":  # a large file goes to a signed address
                self._say(401, {"error": "Invalid credentials in Authorization header"})
                return
            for pattern, answer in ROUTES:
                if match := re.fullmatch(pattern, f"{verb} {path}"):
                    self._say(*answer(state, body, *match.groups()))
                    return
            self._say(404, {"error": f"the stand-in has no {verb} {path}"})

        def _say(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            headers = headers or {"Content-Type": "application/json"}
            lie = state.lie and state.lie(len(state.asked) - 1, status, headers, data)
            if lie:
                self.wfile.write(lie)
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            return None

    return Handler


def _create(state: Hub, body: bytes) -> tuple:
    wanted = json.loads(body)
    name = f"{wanted['organization']}/{wanted['name']}"
    url = {"url": f"{state.address}/{name}", "name": name, "id": name}
    if name in state.repositories:
        return 409, {"error": "You already created this model repo", **url}
    private = (
        wanted.get("visibility", "private" if wanted.get("private") else "public") == "private"
    )
    state.repositories[name] = {"private": private, "files": {}}
    return 200, url


def _info(state: Hub, body: bytes, name: str) -> tuple:
    if name not in state.repositories:
        return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
    files = [{"rfilename": path} for path in state.files(name)]
    private = state.repositories[name]["private"]
    return 200, {"id": name, "sha": SHA, "private": private, "siblings": files, "tags": []}


def _tree(state: Hub, body: bytes, name: str) -> tuple:
    return 200, [
        {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for path, data in state.files(name).items()
    ]


def _validate(state: Hub, body: bytes) -> tuple:
    """Validate that a card's metadata is YAML with a licence, as the hub requires."""
    head = json.loads(body)["content"].split("---")[1]
    try:
        errors = [] if "license" in yaml.safe_load(head) else [{"message": "no license"}]
    except yaml.YAMLError as error:
        errors = [{"message": str(error)}]
    return (400 if errors else 200), {"errors": errors, "warnings": []}


def _preupload(state: Hub, body: bytes, name: str) -> tuple:
    files = [
        {
            "path": file["path"],
            "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
            "shouldIgnore": False,
        }
        for file in json.loads(body)["files"]
    ]
    return 200, {"files": files}


def _batch(state: Hub, body: bytes, name: str) -> tuple:
    objects = [
        {
            **one,
            "actions": {"upload": {"href": f"{state.address}/large/{one['oid']}", "header": {}}},
        }
        for one in json.loads(body)["objects"]
    ]
    return 200, {"transfer": "basic", "objects": objects}


def _large(state: Hub, body: bytes, sha: str) -> tuple:
    if hashlib.sha256(body).hexdigest() != sha:
        return 400, {"error": "not what was announced"}
    state.large[sha] = body
    return 200, {}


def _commit(state: Hub, body: bytes, name: str) -> tuple:
    for line in map(json.loads, body.splitlines()):
        value = line["value"]
        if line["key"] == "file":
            state.files(name)[value["path"]] = base64.b64decode(value["content"])
        if line["key"] == "lfsFile":
            state.files(name)[value["path"]] = state.large[value["oid"]]
    return 200, {"commitUrl": f"{state.address}/{name}/commit/{SHA}", "commitOid": SHA}


def _resolve(state: Hub, body: bytes, name: str, file: str) -> tuple:
    data = state.files(name).get(file)
    if data is None:
        return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}
    tag = hashlib.sha256(data).hexdigest()
    return 200, data, {"ETag": f'"{tag}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}


_NAME = r"([\w.-]+/[\w.-]+)"
ROUTES = (
    ("POST /api/repos/create", _create),
    ("POST /api/validate-yaml", _validate),
    (rf"GET /api/models/{_NAME}(?:/revision/\w+)?", _info),
    (rf"GET /api/models/{_NAME}/tree/\w+", _tree),
    (rf"POST /api/models/{_NAME}/preupload/\w+", _preupload),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", _batch),
    (r"PUT /large/(\w+)", _large),
    (rf"POST /api/models/{_NAME}/commit/\w+", _commit),
    (rf"(?:GET|HEAD) /{_NAME}/resolve/\w+/(\S+)", _resolve),
)
