"""`anchorscope app`: a model asked live, in the browser, on this machine."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from anchorscope.cli.model import OWN, Adapter, Revision, load_named
from anchorscope.cli.terminal import Bar, echo
from anchorscope.config import help_of
from anchorscope.errors import UserError

_PASSWORD = "ANCHORSCOPE_PASSWORD"


def app(
    run: Annotated[
        Path | None,
        typer.Argument(help="A finished run; without it, a small one is made and kept."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"The run's model; {OWN}; without a run, `bundled`.")
    ] = None,
    revision: Revision = None,
    adapter: Adapter = None,
    detector: Annotated[
        str | None, typer.Option(help="A detector's folder, or a hub repository.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port; 0 is any free one.")] = 7860,
    listen: Annotated[
        str,
        typer.Option(help=f"Another address of this machine; needs a password in {_PASSWORD}."),
    ] = "127.0.0.1",
    device: Annotated[str, typer.Option(help=help_of("device"))] = "auto",
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Serve the page and open no browser.")
    ] = False,
) -> None:
    """Serve a page to ask a model live and inspect its answers, token by token.

    It shows the answer as it grows with its probability of being wrong, the pathway, and the
    belief by layer, clean and with any tokens cut. It listens on 127.0.0.1 alone.
    """
    _require_gradio()
    from anchorscope.app.page import guarded_app
    from anchorscope.cli.show import open_in_browser
    from anchorscope.web.server import LOCAL, Server, bind, check_listener, start_listening

    password = None if listen == LOCAL else os.environ.get(_PASSWORD, "")
    check_listener(listen, password, what="password", variable=_PASSWORD, least=8, one_address=True)
    bound = bind(listen, port)
    with Bar() as bar:
        state = _open(run, model, revision, adapter, detector, device, bar)
    host, taken = bound.getsockname()[:2]
    server = Server(guarded_app(state, host=host, port=taken, password=password))
    address = start_listening(bound)
    echo(f"Open {address} in a browser. Ctrl-C ends it.")
    if password is not None:
        echo("The name is anchorscope. The password travels in the clear: use a tunnel.")
    if not no_open:
        open_in_browser(address)
    with suppress(KeyboardInterrupt):  # which is how it ends
        server.run(sockets=[bound])


def _open(
    run: Path | None,
    model: str | None,
    revision: str | None,
    adapter: str | None,
    detector: str | None,
    device: str,
    bar: Any,
) -> Any:
    """The model, the run and the detector, loaded and proved; each step is said."""
    from anchorscope.app.state import AppState, kept_run
    from anchorscope.detect.detector import Detector
    from anchorscope.run_folder.view import RunView

    view = None if run is None else RunView.open(run)
    trained = None if detector is None else Detector.load(detector)
    facts = {} if view is None else view.model
    bar.note("Loading the model ...")
    loaded = load_named(facts, run, model=model, revision=revision, adapter=adapter, device=device)
    if view is None:
        bar.note("No run was given: probes are trained on built-in questions, once, and kept.")
        view = kept_run(loaded, progress=bar)
    bar.note("Checking the knockout on the model, and asking once to warm up ...")
    state = AppState(loaded, view, trained)
    state.warm()
    return state


def _require_gradio() -> None:
    if find_spec("gradio") is None:
        raise UserError(
            "`anchorscope app` needs gradio, which is not installed. Install it: "
            f"{sys.executable} -m pip install 'anchorscope[app]'."
        )
