"""The command line: its commands, and errors printed as one sentence."""

from __future__ import annotations

import errno
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from anchorscope.cli.detect import detect
from anchorscope.cli.model import datasets, doctor, get, models
from anchorscope.cli.results import app as app_command
from anchorscope.cli.results import claims, export, figure, power, verdicts, verify, view
from anchorscope.cli.run import analyse, run, simulate, study
from anchorscope.cli.terminal import Terminal, echo
from anchorscope.errors import UserError

EXIT_CODES = (
    "Exit codes: 0 done; 1 a study with a failed run, or a bug, with its traceback; "
    "2 a mistake in the command or its input, with a sentence on how to fix it, or a failed check; "
    "130 stopped by Ctrl-C, and the same command continues."
)
_CTRL_C = 130
# Errors of a disk, not of a mistyped path.
_DISK = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EFBIG, errno.EACCES,
)  # fmt: skip

app = typer.Typer(
    no_args_is_help=True,
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in {
    "Run": {"run": run, "study": study, "analyse": analyse, "simulate": simulate},
    "Look at results": {
        "view": view, "figure": figure, "claims": claims, "app": app_command, "power": power,
        "verdicts": verdicts, "verify": verify, "export": export,
    },
    "Models and data": {"models": models, "datasets": datasets, "doctor": doctor, "get": get},
}.items():  # fmt: skip
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(detect, name="detect", rich_help_panel="Detectors of wrong answers")


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"anchorscope {version('anchorscope')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="The version, and stop."),
    ] = False,
) -> None:
    """Where a language model's sense of its own truthfulness comes from: question or answer."""


def main() -> None:
    """Run the command line: exit code 2 for an error the user can fix, 130 for Ctrl-C."""
    try:  # nothing before it: Ctrl-C may come at once
        app()
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        sentence = _sentence(error)
        if sentence is None:  # a bug, which keeps its traceback
            raise
        errors = Terminal(stderr=True, soft_wrap=True)
        errors.print("[bold red]Error[/] ", end="")
        errors.print(sentence, markup=False)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != _CTRL_C:
            raise
        Terminal(stderr=True, soft_wrap=True).print(
            "Stopped. The same command continues where it was."
        )
        sys.exit(_CTRL_C)


def _sentence(error: Exception) -> str | None:
    """Describe a user's mistake, a full disk or exhausted memory in a sentence; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        if error.errno not in _DISK:
            return None
        return (
            f"{error.filename or 'A file'} cannot be used: {error.strerror}. What was finished is "
            "kept: make room or choose another place, and run the same command again."
        )
    out_of_memory = isinstance(error, MemoryError)
    if "torch" in sys.modules:  # else no pass can have failed
        from anchorscope.engine.batches import is_out_of_memory

        out_of_memory = out_of_memory or is_out_of_memory(error)
    if not out_of_memory:
        return None
    return (
        "Memory ran out. What was finished is kept: choose another --device, a smaller --dtype "
        "or a smaller model, or end what else runs here, and run the same command again."
    )
