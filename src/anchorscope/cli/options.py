"""Options shared by several commands, and options made from the fields of `Config`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from anchorscope.config import EVIDENCE, Config, default_of, help_of
from anchorscope.errors import UserError
from anchorscope.models.locate import WEIGHTS

# --- Shared by several commands ---


MODEL_HELP = f"needed unless {' or '.join(f'`{name}`' for name in WEIGHTS)} is named"
FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
SomeData = Annotated[
    str, typer.Option(help="Some of the run's datasets, joined by commas; default: all.")
]
Revision = Annotated[str | None, typer.Option(help=help_of("revision"))]
Adapter = Annotated[str | None, typer.Option(help=help_of("adapter"))]
Device = Annotated[str, typer.Option(help=help_of("device"))]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help=help_of("trust_remote_code"))
]
DetectorFolder = Annotated[str, typer.Argument(help="A detector's folder, or a hub repository.")]
DetectorModel = Annotated[str | None, typer.Option(help=f"The detector's model; {MODEL_HELP}.")]
AsDataset = Annotated[
    str | None,
    typer.Option("--as", help="Use the prompt of this training dataset, if it had several."),
]


def words(text: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_limit(text: str) -> int | None:
    """Parse --limit; None means `all`."""
    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--limit is '{text}'. Accepted: a number of questions, or all.")
    return int(text)


# --- The fields of Config ---


# The group of each option in `--help`; the others come before them.
PANELS = {
    "Questions and answers": (
        "columns", "skip_bad_rows", "verdicts", "reuse", "prompt", "shots", "max_tokens", "finder",
    ),
    "Knockout": ("keys", "where", "layers"),
    "Probes and statistics": (
        "grouping", "delta", "folds", "fold_seeds", "C", "balance", "resamples", "seed",
    ),
    "More results": ("ablate", "robust", "evidence"),
    "Model and device": ("dtype", "device", "revision", "adapter", "trust_remote_code"),
    "Batches, workers and clusters": (
        "shard", "batch_tokens", "workers", "threads", "ray", "gpus_per_worker", "rank",
        "world_size",
    ),
}  # fmt: skip
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}
STATISTICS = PANELS["Probes and statistics"]
CONFIG_OPTIONS = ("model", "data", "limit", *_PANEL)
_TYPES = get_type_hints(Config)
_HELP = {
    "data": "Question sets or files, joined by commas.",
    "limit": "Questions of each set, or `all`.",
}


def with_config(*names: str, **helps: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `config` by one option for each of these config fields.

    Args:
        names: The fields; the command gets a `Config` made from them.
        helps: Lines of help that differ from the fields' own.

    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            config = read_config({name: given.pop(name) for name in names})
            command(**given, config=config)

        parameters = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "config":
                parameters += [_option(name, helps.get(name)) for name in names]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.__doc__ = command.__doc__
        return call

    return decorate


def _option(name: str, text: str | None) -> inspect.Parameter:
    """Make the option of a config field; lists and the limit are given as text."""
    flag, default = f"--{name.replace('_', '-')}", default_of(name)
    kind = _TYPES[name]
    if isinstance(default, tuple) or name == "limit":
        kind, default = str, ",".join(default) if isinstance(default, tuple) else str(default)
    elif isinstance(default, str):  # a choice, which `Config` checks
        kind = str
    option = typer.Option(
        flag, help=text or _HELP.get(name) or help_of(name), rich_help_panel=_PANEL.get(name)
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def read_config(options: dict[str, Any]) -> Config:
    """Build the config from a command's options."""
    read = {"data": words, "ablate": words, "evidence": _evidence, "limit": read_limit}
    return Config(
        **{name: read[name](text) if name in read else text for name, text in options.items()}
    )


def _evidence(text: str) -> tuple[str, ...]:
    return {"all": EVIDENCE, "none": ()}.get(text.strip(), words(text))
