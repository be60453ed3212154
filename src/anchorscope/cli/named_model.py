"""Load the model of a detector or a run: the one typed, or one of ours that the file names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorscope.config import help_of
from anchorscope.errors import UserError
from anchorscope.models.locate import WEIGHTS

if TYPE_CHECKING:
    from anchorscope.models import Model

Revision = Annotated[str | None, typer.Option(help=help_of("revision"))]
Adapter = Annotated[str | None, typer.Option(help=help_of("adapter"))]
OWN = f"needed unless {' or '.join(f'`{name}`' for name in WEIGHTS)} is named"


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
