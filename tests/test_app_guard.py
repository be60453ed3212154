"""Who may speak to the app: exact Host and Origin, the page's own paths, a password elsewhere."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import Iterator

import pytest
from kit.app_server import served
from kit.inspection_fixture import hostile_model, make_inspected

pytest.importorskip("gradio", reason="gradio is not installed")
from anchorscope.app.state import AppState
from anchorscope.run_folder.view import RunView
from anchorscope.web.server import bind, start_listening


@pytest.fixture(scope="module")
def app_state(tmp_path_factory: pytest.TempPathFactory) -> AppState:
    model = hostile_model()
    folder = make_inspected(tmp_path_factory.mktemp("guard") / "run", model)
    return AppState(model, RunView.open(folder))


@pytest.fixture(scope="module")
def place(app_state: AppState) -> Iterator[str]:
    with served(app_state) as address:
        yield address.removeprefix("http://").rstrip("/")


def test_a_client_that_comes_with_the_address_is_not_turned_away() -> None:
    with bind("127.0.0.1", 0) as listening:
        where = listening.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(where, timeout=20)
        assert start_listening(listening) == f"http://127.0.0.1:{where[1]}/"
        socket.create_connection(where, timeout=20).close()


def send(place: str, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request with exactly these headers."""
    connection = http.client.HTTPConnection(place, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    body = b"{}" if method == "POST" else b""
    for name, value in (headers | {"content-length": str(len(body))}).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    found = reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    connection.close()
    return found


def test_the_page_is_served_to_its_own_names_alone(place: str) -> None:
    port = place.split(":")[1]
    for host in (place, f"localhost:{port}"):
        assert send(place, "GET", "/", host=host)[0] == 200
    evil = ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil.example")
    for host in (*evil, f"127.0.0.1:{int(port) + 1}", f"[::1]:{port}", ""):
        status, _, body = send(place, "GET", "/", host=host)
        assert (status, b"Use the address that was printed" in body) == (421, True)


def test_a_page_of_another_site_is_refused(place: str) -> None:
    path = "/gradio_api/queue/join"
    own = send(place, "POST", path, host=place, origin=f"http://{place}")[0]
    assert own not in (403, 404, 421)
    for origin in ("https://evil.example", "null", f"https://{place}", f"http://{place}.x"):
        assert send(place, "POST", path, host=place, origin=origin)[0] == 403
        assert send(place, "GET", "/config", host=place, origin=origin)[0] == 403
    assert send(place, "POST", path, host=place)[0] == 403  # a browser always says its origin


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/file=/etc/passwd", "/docs",
        "/gradio_api/proxy=https://evil.example/", "/gradio_api/info", "/monitoring",
        "/gradio_api/call/ask", "/gradio_api/run/predict", "/openapi.json",
        "/assets/../../../etc/passwd", "/gradio_api/component_server",
    ],
)  # fmt: skip
def test_there_is_no_way_to_files_or_further_interfaces(place: str, path: str) -> None:
    for method in ("GET", "POST"):
        status = send(place, method, path, host=place, origin=f"http://{place}")[0]
        assert status in (403, 404)


def test_chunked_body_is_counted_as_it_arrives(place: str) -> None:
    connection = http.client.HTTPConnection(place, timeout=60)
    headers = {"Host": place, "Origin": f"http://{place}", "Content-Type": "application/json"}
    chunks = iter([b" " * 50_000] * 4)  # http.client sends no Content-Length for an iterator
    connection.request("POST", "/gradio_api/queue/join", chunks, headers, encode_chunked=True)
    reply = connection.getresponse()
    assert (reply.status, b"65536 bytes" in reply.read()) == (413, True)
    connection.close()


def test_with_a_password_nothing_is_told_before_it(app_state: AppState) -> None:
    with served(app_state, password="correct horse") as address:
        place = address.removeprefix("http://").rstrip("/")
        own = {"host": place, "origin": f"http://{place}"}
        assert send(place, "GET", "/config", **own)[0] == 401
        status, _, body = send(place, "POST", "/gradio_api/queue/join", **own)
        assert status in (401, 422) and b"event_id" not in body
        assert b"asked live" not in send(place, "GET", "/", host=place)[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "0.0.0.0"], "is every address"),
        (["--listen", "10.1.2.3"], "Set a password"),
        (["missing-folder", "--no-open", "--port", "0"], "There is no folder 'missing-folder'"),
        (["--port", "99999"], "cannot be listened on"),
    ],
)
def test_the_command_says_what_is_wrong_before_anything_is_loaded(
    cli, monkeypatch, words, said
) -> None:
    monkeypatch.delenv("ANCHORSCOPE_PASSWORD", raising=False)
    code, _, error = cli("app", *words)
    assert code == 2 and said in error


def test_without_gradio_the_command_says_how_to_get_it(cli, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, _, error = cli("app")
    assert code == 2 and "pip install 'anchorscope[app]'" in error
