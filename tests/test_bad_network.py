"""A hub that answers wrongly: nothing of it is kept, and one sentence for a terminal says so."""

from __future__ import annotations

import pytest
from kit.hub_server import Hub, hub, reached
from torture.folders import detector

from anchorscope.detect.detector import Detector
from anchorscope.detect.saved import FILES, upload
from anchorscope.errors import UserError, in_a_line

NAME = "org/detector"


def test_what_a_server_answers_is_shown_as_one_line_without_controls():
    assert in_a_line(ValueError("\x1b[31mred\nmore")) == "?[31mred"
    assert in_a_line(ValueError("")) == "ValueError"
    assert len(in_a_line("x" * 10_000)) == 300


@pytest.fixture
def there(tmp_path):
    """A hub with a detector on it, which its library asks with an empty cache."""
    files = {name: (detector() / name).read_bytes() for name in FILES}
    repositories = {NAME: {"private": False, "files": files}}
    with hub(repositories=repositories) as there, reached(there, tmp_path / "hf"):
        yield there


def response(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} OK", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(work) -> str:
    with pytest.raises(UserError) as error:
        work()
    message = str(error.value)
    assert 0 < len(message) < 2000 and message.isprintable() and "Traceback" not in message
    return message


@pytest.mark.parametrize("kind", ["one bit", "a page"])
def test_a_detector_that_came_damaged_is_fetched_again(there: Hub, kind: str):
    """It stayed in the hub's cache and was refused for ever; now no longer than the hub errs."""

    def damage(number: int, status: int, headers: dict[str, str], body: bytes) -> bytes | None:
        if "/resolve/" not in there.asked[-1] or not there.asked[-1].startswith("GET"):
            return None
        other = body[:-1] + bytes([body[-1] ^ 1]) if kind == "one bit" else b"<html>no</html>"
        return response(status, headers, other)

    there.lie = damage
    refusal(lambda: Detector.load(NAME))
    there.lie = None
    assert Detector.load(NAME).id == Detector.load(detector()).id


def test_a_push_that_the_hub_refuses_is_a_sentence(there: Hub):
    there.lie = lambda *_: response(403, {}, b'{"error": "\x1b[31mno"}')
    assert "could not be written" in refusal(lambda: upload(detector(), NAME, private=True))
