"""`anchorscope detect serve`: a model and its detector behind OpenAI's protocol."""

from __future__ import annotations

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
_LOCAL = "127.0.0.1"
_LEAST = 16  # characters of an API key


def serve(
    detector: Annotated[str, typer.Argument(help="A detector's folder, or a hub repository.")],
    model: Annotated[str | None, typer.Option(help=f"The detector's model; {OWN}.")] = None,
    revision: Revision = None,
    adapter: Adapter = None,
    port: Annotated[int, typer.Option(help="The port; 0 is any free one.")] = 8000,
    listen: Annotated[
        str, typer.Option(help="Another address of this machine; needs an API key.")
    ] = _LOCAL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=_KEY, help=f"The key that clients send; better in {_KEY}."),
    ] = None,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more are refused.")] = 64,
    batch: Annotated[int, typer.Option(help="Most questions in one batch.")] = 32,
    question_chars: Annotated[int, typer.Option(help="Most characters of a question.")] = 2000,
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
) -> None:
    """Serve a model's answers with their scores to OpenAI's clients, until Ctrl-C or SIGTERM.

    The last user message is asked with the detector's own prompt, as the detector was evaluated.
    It listens on 127.0.0.1 alone unless --listen and an API key are given.
    """
    _check_key(listen, api_key)
    for name, value in (("queue", queue), ("batch", batch), ("question-chars", question_chars),
                        ("request-bytes", request_bytes)):  # fmt: skip
        if value < 1:
            raise UserError(f"--{name} is {value}. Accepted: 1 or more.")
    if not 0 < request_seconds < math.inf:
        raise UserError(f"--request-seconds is {request_seconds}. Accepted: more than 0.")
    if not 0 <= drain < math.inf:
        raise UserError(f"--drain is {drain}. Accepted: 0 or more seconds.")
    _require_extra()
    from anchorscope.serve.app import Limits, serve_app
    from anchorscope.web.server import Server, bind, start_listening

    limits = Limits(queue=queue, batch=batch, characters=question_chars, bytes=request_bytes)
    bound = bind(listen, port)
    served = _served(detector, model, revision, adapter, device, as_dataset)
    taken = bound.getsockname()[1]
    hosts = [f"{_LOCAL}:{taken}", f"localhost:{taken}"]
    guard = serve_app(served, limits=limits, key=api_key, hosts=hosts)
    server = Server(guard, drain=drain, request_seconds=request_seconds)
    address = start_listening(bound)
    echo(
        f"{served.model.name} with the detector '{served.detector.name}' at {address}v1. "
        "Ctrl-C ends it."
    )
    if listen != _LOCAL:
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
) -> Any:
    """Model and detector, loaded and proved on one question."""
    from anchorscope.detect.deployed.detector import Detector
    from anchorscope.serve.served import Served

    loaded = Detector.load(detector)
    _check_dataset(loaded.datasets, dataset)
    with Bar() as bar:
        bar.note("Loading the model ...")
        lm = load_named(
            loaded.model, detector, model=model, revision=revision, adapter=adapter, device=device
        )
        bar.note("Proving the detector on the model with one question ...")
        served = Served(loaded, lm, dataset)
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


def _check_key(listen: str, key: str | None) -> None:
    if key is None and listen == _LOCAL:
        return
    if key is None:
        raise UserError(
            f"--listen {listen} lets others in. Set an API key of {_LEAST} characters or more in "
            f"the environment variable {_KEY} first."
        )
    if len(key) < _LEAST or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"The API key has {len(key)} characters. Accepted: {_LEAST} or more printable ASCII "
            "characters without spaces."
        )


def _require_extra() -> None:
    missing = [n for n in ("fastapi", "uvicorn", "prometheus_client") if find_spec(n) is None]
    if missing:
        raise UserError(
            f"`anchorscope detect serve` needs {', '.join(missing)}, which is not installed. "
            f"Install it: {sys.executable} -m pip install 'anchorscope[serve]'."
        )
