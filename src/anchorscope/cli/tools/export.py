"""`anchorscope export`: states and labels of a run, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorscope.cli.terminal import echo
from anchorscope.errors import unknown


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    to: Annotated[str, typer.Option(help="numpy, hf (datasets), or probelab.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    passes: Annotated[
        str, typer.Option(help="Whose states, joined by commas: clean, knockout, neutral, ...")
    ] = "clean",
    data: Annotated[
        str, typer.Option(help="Some of the run's datasets, joined by commas; default: all.")
    ] = "",
) -> None:
    """Writes the states at the probe position and their labels in another tool's format.

    numpy: <pass>.npy [sample, layer, width], which can be memory-mapped. hf: a folder for
    datasets.load_from_disk, a column for each layer. probelab: <pass>.h5 for its load_hdf5. The
    label is 1 for a wrong answer; abstentions are left out. It ends with the lines that load it.
    """
    from anchorscope.cli.bar import quiet_libraries
    from anchorscope.run_folder.export import FORMATS, Material, write
    from anchorscope.run_folder.view import RunView

    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    view = RunView.open(run, collected_ok=True)
    material = Material.of(view, passes=_words(passes), datasets=_words(data) or view.datasets)
    quiet_libraries()
    lines = write(material, to, out)
    samples, layers, width = material.shape
    echo(f"{samples} samples, {layers} layers, width {width}: {out}. To load them:")
    for line in lines:
        echo(f"  {line}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
