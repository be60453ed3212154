"""`anchorscope simulate`: a run whose truth is known, to see what the reading makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorscope.cli.run import option
from anchorscope.cli.terminal import echo


def simulate(
    world: Annotated[
        str, typer.Option(help="one-mechanism, two-pathways, shift, continuum, no-effect, ...")
    ],
    layers: Annotated[int, typer.Option(help="Layers of the simulated model.")] = 12,
    samples: Annotated[int, typer.Option(help="Questions, half of them answered wrong.")] = 400,
    strength: Annotated[
        float, typer.Option(help="Size of the push, in standard deviations of the belief.")
    ] = 4.0,
    mixture: Annotated[float, typer.Option(help="Share of samples that are pushed.")] = 0.5,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise.")] = 0.5,
    belief: Annotated[
        float, typer.Option(help="Distance of each class's mean belief from the middle.")
    ] = 1.5,
    templates: Annotated[int, typer.Option(help="Relations in the world 'templates'.")] = 4,
    missed: Annotated[
        float, typer.Option(help="Share of exact tokens not found, in the world 'finder-misses'.")
    ] = 0.3,
    control: Annotated[
        str, typer.Option(help="What the neutral control does: jolt, displaces, surer, breaks.")
    ] = "jolt",
    width: Annotated[int, typer.Option(help="Width of a state.")] = 32,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    robust: Annotated[bool, option("robust", "--robust")] = False,
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/simulated"),
) -> None:
    """Simulates hidden states with a known truth and analyses them like those of a run."""
    from anchorscope.cli.bar import Bar
    from anchorscope.simulate import Truth
    from anchorscope.simulate import simulate as make
    from anchorscope.simulate.run import config_of

    truth = Truth(
        world=world,  # type: ignore[arg-type]
        layers=layers,
        samples=samples,
        strength=strength,
        mixture=mixture,
        noise=noise,
        belief=belief,
        templates=templates,
        missed=missed,
        control=control,  # type: ignore[arg-type]
        width=width,
        seed=seed,
    )
    with Bar() as bar:
        view = make(truth, out=out, config=config_of(truth, robust=robust), progress=bar)
    if robust:
        echo(view.robust.round(2).to_string(index=False))
    echo(f"Report: {view.path / 'report.html'}")
