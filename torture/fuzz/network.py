"""Answers of the hub that are broken, or lie: a whole file or a sentence.

The server is on this machine (broken_server.py). Waiting is made short, so that a wait without end
shows: an input may take `SECONDS` by the clock.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kit.hub_server import ROUTES, Hub
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.hub import upload
from anchorscope.detect.deployed.saved import FILES
from anchorscope.errors import UserError
from anchorscope.models import load_model
from torture.fuzz.broken_server import Answer, Lie, Server, lie
from torture.fuzz.folders import detector
from torture.fuzz.target import Hang, Target
from torture.fuzz.texts import seeded

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-network-"))
SECONDS = 6.0  # by the clock
PATIENT = 40.0  # for a model: its library asks for each of a dozen files six times
SHORT = 0.6  # seconds without a byte, instead of a minute
HONEST = Lie(-2, "", 0)
TINY, DETECTOR = "org/tiny", "org/detector"


@contextmanager
def set_to(place: Any, **values: Any) -> Iterator[None]:
    """Other values of a module or a mapping until the block ends."""
    there = place if isinstance(place, dict | os._Environ) else vars(place)
    before = {name: there.get(name) for name in values}
    try:
        there.update(values)
        yield
    finally:
        for name, value in before.items():
            there.pop(name) if value is None else there.update({name: value})


@contextmanager
def in_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raises where the block took too long by the clock, and where it wrote beside its folders."""
    begun = time.monotonic()
    try:
        yield
    finally:
        took = time.monotonic() - begun
        if took > seconds:
            raise Hang(f"an answer kept us waiting for {took:.1f} s")
        assert {p.name for p in PLACE.iterdir()} <= {"cache", "hf", "tiny"}, os.listdir(PLACE)


def check_line(said: str, never: str = "Traceback") -> None:
    """A sentence for a terminal: short, in one line, nothing in it that steers the terminal."""
    assert len(said) < 2000 and said.isprintable() and never not in said, said[:500]


@cache
def _model() -> Any:
    return load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())


@cache
def _hub() -> tuple[Server, Hub]:
    """A hub with a detector and a tiny model on it."""
    model = PLACE / "tiny"
    _model().lm.save_pretrained(model)
    _model().tokenizer.save_pretrained(model)
    held = {DETECTOR: [detector() / name for name in FILES], TINY: sorted(model.iterdir())}
    state = Hub(repositories={
        name: {"private": False, "files": {file.name: file.read_bytes() for file in files}}
        for name, files in held.items()
    })  # fmt: skip

    def honest(verb: str, path: str, body: bytes) -> Answer:
        asked = f"{verb} {unquote(urlsplit(path).path)}"
        for pattern, answer in ROUTES:
            if match := re.fullmatch(pattern, asked):
                said = answer(state, body, *match.groups())
                content, headers = said[1], said[2] if len(said) > 2 else {}
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                kind = {"Content-Type": "application/json"} if content is not data else {}
                return Answer(said[0], kind | headers, data)
        return Answer(404, {"X-Error-Code": "EntryNotFound"}, b"{}")

    server = Server(honest)
    state.address = server.address
    return server, state


@contextmanager
def at_hub(given: Lie, seconds: float = SECONDS) -> Iterator[None]:
    """The hub's library asks the server here, with an empty cache and short patience."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http, disable_progress_bars

    disable_progress_bars()
    for name in ("huggingface_hub", "transformers"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    shutil.rmtree(PLACE / "hf", ignore_errors=True)
    _new_process()
    server, _ = _hub()
    server.begin(given)
    patient = {name: SHORT for name in dir(constants) if name.endswith("_TIMEOUT")}
    there = patient | {
        "ENDPOINT": server.address,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_CACHE": str(PLACE / "hf"),
    }
    quick = set_to(_http, time=types.SimpleNamespace(**{**vars(time), "sleep": lambda _: None}))
    environment = set_to(os.environ, HF_TOKEN="hf_right", no_proxy="127.0.0.1")
    with set_to(constants, **there), quick, environment, in_time(seconds):
        yield


def check_detector(given: Lie) -> None:
    """A detector from a hub that lies: the one that is meant, or a sentence; and then honestly."""
    with at_hub(given):
        own = Detector.load(detector()).id
        try:
            assert Detector.load(DETECTOR).id == own
        except UserError as error:
            check_line(str(error))
            raise
        finally:  # what came of a lie is not kept for the next time
            _hub()[0].begin(HONEST)
            _new_process()
            again = _id_or_error(DETECTOR)
            assert again == own, again


def _new_process() -> None:
    """Forgets what the library keeps while a process lives: connections, and a server's cookies."""
    from huggingface_hub.utils import close_session

    close_session()


def _id_or_error(place: str) -> str:
    try:
        return Detector.load(place).id
    except UserError as error:
        return str(error)


def check_upload(given: Lie) -> None:
    """`detect push` to a hub that lies: an address, or a sentence."""
    with at_hub(given):
        try:
            upload(detector(), "org/pushed", private=True)
        except UserError as error:
            check_line(str(error))
            raise
        finally:
            _hub()[1].repositories.pop("org/pushed", None)


def check_model(given: Lie) -> None:
    """A model from a hub that lies: the one that is meant, or a sentence."""
    with at_hub(given, PATIENT):
        try:
            loaded = load_model(TINY, device="cpu", dtype="float32")
        except UserError as error:
            check_line(str(error))
            raise
        assert loaded.blocks == _model().blocks


def _lies(requests: int) -> Any:
    """Lies of the hub's: its library waits as long for every byte, so none is slow."""
    return seeded(lambda r: lie(r, requests, rare=0.005, slow=False))


TARGETS = (
    Target(name="detectors of the hub", inputs=_lies(9), check=check_detector, share=1.5),
    Target(name="pushes to the hub", inputs=_lies(9), check=check_upload, share=3),
    Target(name="models of the hub", inputs=_lies(12), check=check_model, share=0.2),
)
