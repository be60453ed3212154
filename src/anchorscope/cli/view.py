"""`anchorscope view`: a page in one file, from the figure to the samples to their tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from anchorscope.cli.terminal import echo


def view(
    runs: Annotated[
        list[Path], typer.Argument(help="A run folder, or two with the same questions.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; without it, view.html in the first run folder.")
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Write the page and open no browser.")
    ] = False,
) -> None:
    """Writes a page to browse a finished run: figures, samples, tokens.

    It needs no model, no server and no network. Two runs are shown side by side, joined by
    question id. The address holds the current view, so a link reproduces it.
    """
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.explore.page import write_view

    written = write_view([RunView.open(run) for run in runs], out)
    echo(f"View: {written.page}")
    if written.beside is not None:
        folder, name = written.page.resolve().parent, written.page.name
        echo(f"Its samples are too many for one file and lie in {written.beside}. Serve them:")
        echo(f"  {sys.executable} -m http.server --bind 127.0.0.1 --directory {folder} 8000")
        echo(f"then open http://127.0.0.1:8000/{name}")
    elif not no_open:
        open_in_browser(written.page.resolve().as_uri())


def open_in_browser(address: str) -> bool:
    """Whether a browser was asked to open the address; nothing waits for it.

    Without a screen there is none, or one that would take over the terminal.
    """
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if screen:
        subprocess.Popen(
            [sys.executable, "-m", "webbrowser", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return screen
