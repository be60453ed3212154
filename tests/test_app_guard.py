"""Who may speak to the app: exact Host and Origin, a password elsewhere, bodies within a limit."""

from __future__ import annotations

import base64
import http.client
import socket

import pytest
from kit.web_server import app_here, send

from anchorscope.web.server import bind, start_listening


@pytest.fixture(scope="module")
def place(address: str) -> str:
    return address.removeprefix("http://")


def test_a_client_that_comes_with_the_address_is_not_turned_away() -> None:
    with bind("127.0.0.1", 0) as listening:
        where = listening.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(where, timeout=20)
        assert start_listening(listening) == f"http://127.0.0.1:{where[1]}/"
        socket.create_connection(where, timeout=20).close()


def test_the_page_has_a_policy_of_its_own_and_a_length(place: str) -> None:
    status, headers, body = send(place, "GET", "/", host=place)
    policy = headers["content-security-policy"]
    assert status == 200 and policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy and "script-src 'unsafe-inline'" not in policy
    assert int(headers["content-length"]) == len(body)
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    status, same, nothing = send(place, "HEAD", "/", host=place)
    assert (status, same["content-length"], nothing) == (200, str(len(body)), b"")
    for path in ("/docs", "/openapi.json", "/etc/passwd", "/../../etc/passwd"):
        status, headers, _ = send(place, "GET", path, host=place)
        assert status == 404 and headers["content-security-policy"].startswith("default-src 'none'")


def test_a_page_of_another_site_is_refused(place: str) -> None:
    assert send(place, "POST", "/step", host=place, origin=f"http://{place}")[0] == 400
    for origin in ("https://evil.example", "null", f"https://{place}", f"http://{place}.x"):
        assert send(place, "POST", "/step", host=place, origin=origin)[0] == 403
        assert send(place, "GET", "/", host=place, origin=origin)[0] == 403
    assert send(place, "POST", "/step", host=place)[0] == 403  # a browser always says its origin


def test_chunked_body_is_counted_as_it_arrives(place: str) -> None:
    connection = http.client.HTTPConnection(place, timeout=60)
    headers = {"Host": place, "Origin": f"http://{place}", "Content-Type": "application/json"}
    chunks = iter([b" " * 50_000] * 4)  # http.client sends no Content-Length for an iterator
    connection.request("POST", "/step", chunks, headers, encode_chunked=True)
    reply = connection.getresponse()
    assert (reply.status, b"65536 bytes" in reply.read()) == (413, True)
    connection.close()


def test_with_a_password_nothing_is_told_before_it(app_state) -> None:
    with app_here(app_state, password="correct horse") as address:
        place = address.removeprefix("http://")
        own = {"host": place, "origin": f"http://{place}"}

        def basic(words: str) -> dict[str, str]:
            return {"authorization": f"Basic {base64.b64encode(words.encode()).decode()}"}

        for wrong in ({}, basic("anchorscope:wrong horse"), basic("other:correct horse")):
            status, headers, body = send(place, "GET", "/", **own, **wrong)
            assert (status, headers["www-authenticate"]) == (401, "Basic")
            assert b"asked live" not in body
            assert send(place, "POST", "/step", **own, **wrong)[0] == 401
        right = basic("anchorscope:correct horse")
        assert b"asked live" in send(place, "GET", "/", **own, **right)[2]
        evil = own | {"origin": "https://evil.example"}  # a browser sends the password along
        assert send(place, "POST", "/step", **evil, **right)[0] == 403


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listen", "0.0.0.0"], "is every address"),
        (["--listen", "10.1.2.3"], "Set the environment variable ANCHORSCOPE_PASSWORD"),
        (["missing-folder", "--no-open", "--port", "0"], "There is no folder 'missing-folder'"),
        (["--port", "99999"], "cannot be listened on"),
    ],
)
def test_the_command_says_what_is_wrong_before_anything_is_loaded(
    cli, monkeypatch, words, sentence
) -> None:
    monkeypatch.delenv("ANCHORSCOPE_PASSWORD", raising=False)
    code, _, error = cli("app", *words)
    assert code == 2 and sentence in error


def test_without_its_packages_the_command_says_how_to_get_them(cli, monkeypatch) -> None:
    monkeypatch.setattr("anchorscope.cli.terminal.find_spec", lambda name: None)
    code, _, error = cli("app")
    assert code == 2 and "needs fastapi, uvicorn" in error
    assert "pip install 'anchorscope[app]'" in error
