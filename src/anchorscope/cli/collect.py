"""`anchorscope detect collect`: the answers and states that detectors are made of."""

from __future__ import annotations

from typing import Annotated

import typer

from anchorscope.cli.run import DATA, LIMIT, Data, Limit, Out, config_of, option, rank_done
from anchorscope.cli.terminal import echo
from anchorscope.config import default_of
from anchorscope.errors import UserError

_NO_CONFIG = ("out", "samples", "temperature")  # options that no run has


def collect(
    out: Out,
    model: Annotated[str, option("model")] = default_of("model"),
    data: Data = DATA,
    limit: Limit = LIMIT,
    columns: Annotated[str | None, option("columns")] = default_of("columns"),
    verdicts: Annotated[str | None, option("verdicts")] = default_of("verdicts"),
    prompt: Annotated[str, option("prompt")] = default_of("prompt"),
    shots: Annotated[int, option("shots")] = default_of("shots"),
    max_tokens: Annotated[int, option("max_tokens")] = default_of("max_tokens"),
    finder: Annotated[str, option("finder")] = default_of("finder"),
    seed: Annotated[int, option("seed")] = default_of("seed"),
    dtype: Annotated[str, option("dtype")] = default_of("dtype"),
    device: Annotated[str, option("device")] = default_of("device"),
    revision: Annotated[str | None, option("revision")] = default_of("revision"),
    adapter: Annotated[str | None, option("adapter")] = default_of("adapter"),
    shard: Annotated[int | None, option("shard")] = default_of("shard"),
    trust_remote_code: Annotated[bool, option("trust_remote_code", "--trust-remote-code")] = False,
    workers: Annotated[int | None, option("workers")] = default_of("workers"),
    threads: Annotated[int | None, option("threads")] = default_of("threads"),
    ray: Annotated[str | None, option("ray")] = default_of("ray"),
    gpus_per_worker: Annotated[int | None, option("gpus_per_worker")] = None,
    rank: Annotated[int | None, option("rank")] = default_of("rank"),
    world_size: Annotated[int | None, option("world_size")] = default_of("world_size"),
    samples: Annotated[
        int | None,
        typer.Option(help="Answers sampled for each question, for detectors that compare them."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampled answers.")] = 1.0,
) -> None:
    """Asks a model questions and keeps what detectors need, without the analysis of pathways.

    A folder of `anchorscope run --evidence detectors` serves as well, and costs more. The same
    command with --samples adds drawn answers to a folder that is there.
    """
    config = config_of({name: value for name, value in locals().items() if name not in _NO_CONFIG})

    from anchorscope.cli.bar import Bar
    from anchorscope.pipeline.collect import add_samples, check_sampling
    from anchorscope.pipeline.collect import collect as collect_states

    if samples is not None:
        check_sampling(samples, temperature)
        if rank is not None:
            raise UserError("--samples needs all answers: leave out --rank, when all are there.")
    with Bar() as bar:
        folder = collect_states(out=out, config=config, progress=bar)
        if samples is not None:
            add_samples(
                folder, samples=samples, temperature=temperature, config=config, progress=bar
            )
    if rank is not None:
        echo(rank_done(config))
    else:
        echo(f"Ready for `anchorscope detect eval {folder}` and `detect train {folder}`.")
