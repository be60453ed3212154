"""`anchorscope detect serve`: a model and its detector behind OpenAI's protocol."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from anchorscope.cli.model import OWN, Adapter, Revision, load_named
from anchorscope.cli.terminal import Bar, echo
from anchorscope.config import help_of
from anchorscope.errors import UserError, unknown

_KEY = "ANCHORSCOPE_API_KEY"


def serve(
    detector: Annotated[str, typer.Argument(help="A detector's folder, or a hub repository.")],
    model: Annotated[str | None, typer.Option(help=f"The detector's model; {OWN}.")] = None,
    revision: Revision = None,
    adapter: Adapter = None,
    port: Annotated[int, typer.Option(help="The port; 0 is any free one.")] = 8000,
    listen: Annotated[
        str, typer.Option(help="Another address of this machine; needs an API key.")
    ] = "127.0.0.1",
    api_key: Annotated[
        str | None,
        typer.Option(envvar=_KEY, help=f"The key that clients send; better in {_KEY}."),
    ] = None,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more are refused.")] = 64,
    batch: Annotated[int, typer.Option(help="Most answers in one batch, and in one request.")] = 32,
    question_chars: Annotated[
        int, typer.Option(help="Most characters of a prompt with its history.")
    ] = 2000,
    max_tokens: Annotated[
        int,
        typer.Option(
            help="Most tokens of an answer, where the detector was trained on given ones."
        ),
    ] = 256,
    request_bytes: Annotated[int, typer.Option(help="Most bytes of a request.")] = 1 << 16,
    request_seconds: Annotated[
        float, typer.Option(help="Most seconds until a request has arrived whole.")
    ] = 30.0,
    drain: Annotated[
        float,
        typer.Option(help="At SIGTERM, most seconds to answer the requests under way."),
    ] = 30.0,
    device: Annotated[str, typer.Option(help=help_of("device"))] = "auto",
    as_dataset: Annotated[
        str | None,
        typer.Option("--as", help="Use the prompt of this training dataset, if it had several."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Write no line for each request to standard error.")
    ] = False,
) -> None:
    """Serve a model's answers with their scores to OpenAI's clients, until Ctrl-C or SIGTERM.

    A single question is asked with the detector's own prompt, as the detector was evaluated; a
    conversation goes through the model's chat template. /v1/score scores answers written elsewhere.
    It listens on 127.0.0.1 alone unless --listen and an API key are given.
    """
    _check_numbers(queue, batch, question_chars, request_bytes, request_seconds, drain)
    _require_extra()
    from anchorscope.serve.app import Limits, requests, serve_app
    from anchorscope.web.server import LOCAL, Server, bind, check_listener, start_listening

    check_listener(listen, api_key, what="API key", variable=_KEY, least=16)
    limits = Limits(queue=queue, batch=batch, characters=question_chars, bytes=request_bytes)
    bound = bind(listen, port)
    served = _served(detector, model, revision, adapter, device, as_dataset, max_tokens)
    taken = bound.getsockname()[1]
    hosts = [f"{LOCAL}:{taken}", f"localhost:{taken}"]
    guard = serve_app(served, limits=limits, key=api_key, hosts=hosts)
    server = Server(guard, drain=drain, request_seconds=request_seconds)
    if not quiet:
        lines = logging.StreamHandler()
        lines.setFormatter(logging.Formatter('{"time": "%(asctime)s", "request": %(message)s}'))
        requests.addHandler(lines)
        requests.setLevel(logging.INFO)
        requests.propagate = False
    address = start_listening(bound)
    echo(
        f"{served.model.name} with the detector '{served.detector.name}' at {address}v1. "
        "Ctrl-C ends it."
    )
    if listen != LOCAL:
        echo("The key and all text travel in the clear: put TLS in front.")
    with suppress(KeyboardInterrupt):  # which is how it ends
        server.run(sockets=[bound])


def _served(
    detector: str,
    model: str | None,
    revision: str | None,
    adapter: str | None,
    device: str,
    dataset: str | None,
    max_tokens: int,
) -> Any:
    """Model and detector, loaded and proved on one question."""
    from anchorscope.detect.detector import Detector
    from anchorscope.serve.served import Served

    loaded = Detector.load(detector)
    _check_dataset(loaded.datasets, dataset)
    with Bar() as bar:
        bar.note("Loading the model ...")
        lm = load_named(
            loaded.model, detector, model=model, revision=revision, adapter=adapter, device=device
        )
        bar.note("Proving the detector on the model with one question ...")
        served = Served(loaded, lm, dataset, max_tokens=max_tokens)
        served.warm()
    return served


def _check_dataset(known: Sequence[str], dataset: str | None) -> None:
    """Raise a UserError where it is open with which dataset's prompt to ask."""
    if dataset is None and len(known) > 1:
        raise UserError(
            f"The detector was trained on {len(known)} datasets, each asked with its own prompt: "
            f"{', '.join(known)}. Say which of them the questions will be like: --as {known[0]}."
        )
    if dataset is not None and dataset not in known:
        raise unknown("dataset of the detector", dataset, known)


def _check_numbers(
    queue: int, batch: int, chars: int, size: int, seconds: float, drain: float
) -> None:
    for name, value in (("queue", queue), ("batch", batch), ("question-chars", chars),
                        ("request-bytes", size)):  # fmt: skip
        if value < 1:
            raise UserError(f"--{name} is {value}. Accepted: 1 or more.")
    if not 0 < seconds < math.inf:
        raise UserError(f"--request-seconds is {seconds}. Accepted: more than 0.")
    if not 0 <= drain < math.inf:
        raise UserError(f"--drain is {drain}. Accepted: 0 or more seconds.")


def _require_extra() -> None:
    missing = [n for n in ("fastapi", "uvicorn", "prometheus_client") if find_spec(n) is None]
    if missing:
        raise UserError(
            f"`anchorscope detect serve` needs {', '.join(missing)}, which is not installed. "
            f"Install it: {sys.executable} -m pip install 'anchorscope[serve]'."
        )
