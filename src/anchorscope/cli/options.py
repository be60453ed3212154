"""Options shared by several commands, and options made from the fields of `Config`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from anchorscope.config import Config, from_text
from anchorscope.models.locate import WEIGHTS

# --- Shared by several commands ---


def flag(name: str, help: str) -> Any:
    """Make an on/off option without the --no- form that typer adds."""
    return typer.Option(name, help=help)


def option(help: str, **settings: Any) -> Any:
    return typer.Option(help=help, **settings)


def argument(help: str) -> Any:
    return typer.Argument(help=help)


MODEL_HELP = f"needed unless {' or '.join(f'`{name}`' for name in WEIGHTS)} is named"
Out = Annotated[Path, option("The run folder; continued if it exists.")]
NewFile = Annotated[Path | None, option("Also write the table to this .csv file.")]
FinishedRun = Annotated[Path, argument("The folder of a finished run.")]
SomeData = Annotated[str, option("Some of the run's datasets, joined by commas; default: all.")]
Port = Annotated[int, option("The port; 0 is any free one.")]
NoOpen = Annotated[bool, flag("--no-open", "Open no browser.")]
DetectorFolder = Annotated[str, argument("A detector's folder, or a hub repository.")]
DetectorModel = Annotated[str | None, option(f"The detector's model; {MODEL_HELP}.")]
AsDataset = Annotated[
    str | None,
    typer.Option("--as", help="Use the prompt of this training dataset, if it had several."),
]


# --- The fields of Config ---


# The group of each option in `--help`; the others come before them.
PANELS = {
    "Questions and answers": (
        "columns", "skip_bad_rows", "answers", "verdicts", "reuse", "prompt", "shots", "max_tokens",
        "finder",
    ),
    "Knockout": ("keys", "where", "layers"),
    "Probes and statistics": (
        "grouping", "delta", "folds", "fold_seeds", "C", "balance", "resamples", "seed",
    ),
    "More results": ("ablate", "robust", "evidence"),
    "Many questions": ("learn_from", "keep_states"),
    "Model and device": (
        "dtype", "device", "revision", "adapter", "trust_remote_code", "engine", "tensor_parallel",
    ),
    "Batches, workers and clusters": (
        "shard", "batch_tokens", "workers", "threads", "ray", "gpus_per_worker", "rank",
        "world_size",
    ),
}  # fmt: skip
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}
STATISTICS = PANELS["Probes and statistics"]
CONFIG_OPTIONS = ("model", "data", "limit", *_PANEL)
_HELP = {
    "data": "Question sets or files, joined by commas.",
    "limit": "Questions of each set, or `all`.",
}


def with_config(
    *names: str, kind: type = Config, parameter: str = "config", **helps: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `config` by one option for each of these config fields.

    Args:
        names: The fields; the command gets a `Config` made from them.
        kind: Another dataclass whose fields have a line of help.
        parameter: The name of the parameter, if it is another one.
        helps: Lines of help that differ from the fields' own.

    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            chosen = {name: from_text(name, given.pop(name)) for name in names}
            command(**given, **{parameter: kind(**chosen)})

        parameters = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            if one.name == parameter:
                parameters += [_option(kind, name, helps.get(name)) for name in names]
            else:
                parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.__doc__, call.__name__ = command.__doc__, command.__name__
        return call

    return decorate


def _option(kind: type, name: str, text: str | None) -> inspect.Parameter:
    """Make the option of a field; lists and the limit are given as text."""
    field, default = kind.__dataclass_fields__[name], getattr(kind, name)  # type: ignore[attr-defined]
    annotation = get_type_hints(kind)[name]
    if isinstance(default, tuple) or name == "limit":
        annotation, default = str, ",".join(default) if isinstance(default, tuple) else str(default)
    elif isinstance(default, str):  # a choice, which the dataclass checks
        annotation = str
    help = text or _HELP.get(name) or field.metadata["help"]
    flag = f"--{name.replace('_', '-')}"
    made = typer.Option(flag, help=help, rich_help_panel=_PANEL.get(name))
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[annotation, made])
