"""Commands that run a server: app, and detect serve."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from anchorscope.cli.model import LOADED, load_named
from anchorscope.cli.options import (
    MODEL_HELP,
    AsDataset,
    DetectorFolder,
    DetectorModel,
    NoOpen,
    Port,
    argument,
    flag,
    option,
    with_config,
)
from anchorscope.cli.terminal import Bar, echo, require_packages
from anchorscope.config import Config
from anchorscope.errors import UserError, unknown

PASSWORD = "ANCHORSCOPE_PASSWORD"
API_KEY = "ANCHORSCOPE_API_KEY"


@with_config(*LOADED)
def app(
    config: Config,
    run: Annotated[
        Path | None, argument("A finished run; without it, a small one is made and kept.")
    ] = None,
    model: Annotated[
        str | None, option(f"The run's model; {MODEL_HELP}; without a run, `bundled`.")
    ] = None,
    detector: Annotated[str | None, option("A detector's folder, or a hub repository.")] = None,
    port: Port = 7860,
    listen: Annotated[
        str, option(f"Another address of this machine; needs a password in {PASSWORD}.")
    ] = "127.0.0.1",
    no_open: NoOpen = False,
) -> None:
    """Serve a page to ask a model live and inspect its answers, token by token.

    It shows the answer as it grows with its probability of being wrong, the pathway, and the
    belief by layer, clean and with any tokens cut. It listens on 127.0.0.1 alone.
    """
    require_packages("app", "app", "fastapi", "uvicorn")
    from anchorscope.app.page import USER, AppState, guarded_app, kept_run
    from anchorscope.cli.results import open_in_browser
    from anchorscope.detect.detector import Detector
    from anchorscope.run_folder.view import RunView
    from anchorscope.web import server as http

    if listen in ("0.0.0.0", "::", ""):  # nosec B104: this refuses it
        raise UserError(
            f"--listen '{listen}' is every address. Accepted: one address of this machine, the one "
            "that visitors type, so that no other name can be used to reach it."
        )
    password = None if listen == http.LOCAL else os.environ.get(PASSWORD, "")
    http.check_listener(listen, password, variable=PASSWORD, least=8)
    bound = http.bind(listen, port)
    view = None if run is None else RunView.open(run)
    trained = None if detector is None else Detector.load(detector)
    with Bar() as bar:
        bar.note("Loading the model ...")
        loaded = load_named(
            {} if view is None else view.model, run, model=model, config=config,
        )  # fmt: skip
        if view is None:
            bar.note("No run was given: probes are trained on built-in questions, once, and kept.")
            view = kept_run(loaded, progress=bar)
        bar.note("Checking the knockout on the model, and asking once to warm up ...")
        state = AppState(loaded, view, trained)
        state.warm()
    server = http.Server(guarded_app(state, hosts=http.hosts_of(bound), password=password))
    address = http.start_listening(bound)
    echo(f"Open {address} in a browser. Ctrl-C ends it.")
    if password is not None:
        echo(f"The name is {USER}. The password travels in the clear: use a tunnel.")
    if not no_open:
        open_in_browser(address)
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the server
        server.run(sockets=[bound])


@with_config(*LOADED)
def serve(
    detector: DetectorFolder,
    config: Config,
    model: DetectorModel = None,
    port: Port = 8000,
    listen: Annotated[
        str, option("Another address of this machine; needs an API key.")
    ] = "127.0.0.1",
    api_key: Annotated[
        str | None,
        typer.Option(envvar=API_KEY, help=f"The key that clients send; better in {API_KEY}."),
    ] = None,
    queue: Annotated[int, option("Requests that may wait; more are refused.", min=1)] = 64,
    batch: Annotated[int, option("Most answers in one batch, and in one request.", min=1)] = 32,
    question_chars: Annotated[
        int, option("Most characters of a prompt with its history.", min=1)
    ] = 2000,
    max_tokens: Annotated[
        int, option("Most tokens of an answer, where the detector was trained on given ones.")
    ] = 256,
    request_bytes: Annotated[int, option("Most bytes of a request.", min=1)] = 1 << 16,
    request_seconds: Annotated[
        float, option("Most seconds until a request has arrived whole.", min=0.001)
    ] = 30.0,
    drain: Annotated[
        float, option("At SIGTERM, most seconds to answer the requests under way.", min=0)
    ] = 30.0,
    as_dataset: AsDataset = None,
    quiet: Annotated[
        bool, flag("--quiet", "Write no line for each request to standard error.")
    ] = False,
) -> None:
    """Serve a model's answers with their scores to OpenAI's clients, until Ctrl-C or SIGTERM.

    A single question is asked with the detector's own prompt, as the detector was evaluated; a
    conversation goes through the model's chat template. /v1/score scores answers written elsewhere.
    It listens on 127.0.0.1 alone unless --listen and an API key are given.
    """
    require_packages("detect serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    from anchorscope.detect.detector import Detector
    from anchorscope.serve.app import Limits, requests, serve_app
    from anchorscope.serve.served import Served
    from anchorscope.web import server as http

    http.check_listener(listen, api_key, variable=API_KEY, least=16)
    limits = Limits(queue=queue, batch=batch, characters=question_chars, bytes=request_bytes)
    bound = http.bind(listen, port)
    loaded = Detector.load(detector)
    _check_dataset(loaded.datasets, as_dataset)
    with Bar() as bar:
        bar.note("Loading the model ...")
        lm = load_named(loaded.model, detector, model=model, config=config)
        bar.note("Proving the detector on the model with one question ...")
        served = Served(loaded, lm, as_dataset, max_tokens=max_tokens)
        served.warm()
    guard = serve_app(served, limits=limits, key=api_key, hosts=http.hosts_of(bound))
    server = http.Server(guard, drain=drain, request_seconds=request_seconds)
    if not quiet:
        lines = logging.StreamHandler()
        lines.setFormatter(logging.Formatter('{"time": "%(asctime)s", "request": %(message)s}'))
        requests.addHandler(lines)
        requests.setLevel(logging.INFO)
        requests.propagate = False
    address = http.start_listening(bound)
    echo(
        f"{served.model.name} with the detector '{served.detector.name}' at {address}v1. "
        "Ctrl-C ends it."
    )
    if listen != http.LOCAL:
        echo("The key and all text travel in the clear: put TLS in front.")
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the server
        server.run(sockets=[bound])


def _check_dataset(trained_on: Sequence[str], dataset: str | None) -> None:
    """Raise a UserError unless it is clear which training dataset's prompt to use."""
    if dataset is None and len(trained_on) > 1:
        raise UserError(
            f"The detector was trained on {len(trained_on)} datasets, each asked with its own "
            f"prompt: {', '.join(trained_on)}. Say which of them the questions will be like: --as "
            f"{trained_on[0]}."
        )
    if dataset is not None and dataset not in trained_on:
        raise unknown("dataset of the detector", dataset, trained_on)
