"""`anchorscope run`: the main job, from a model and questions to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anchorscope.cli.terminal import echo
from anchorscope.config import EVIDENCE, Config, default_of, help_of
from anchorscope.errors import UserError


def option(name: str, *flags: str, **more: Any) -> Any:
    """A command's option that says of a config field what the config says of it."""
    return typer.Option(*(flags or (f"--{name.replace('_', '-')}",)), help=help_of(name), **more)


DATA, LIMIT = ",".join(default_of("data")), str(default_of("limit"))
Data = Annotated[str, typer.Option(help="Question sets or files, joined by commas.")]
Limit = Annotated[str, typer.Option(help="Questions of each set, or `all`.")]
Out = Annotated[Path, typer.Option(help="The run folder; continued if it exists.")]


def run(
    model: Annotated[str, option("model")] = default_of("model"),
    data: Data = DATA,
    limit: Limit = LIMIT,
    out: Out = Path("runs/main"),
    columns: Annotated[str | None, option("columns")] = default_of("columns"),
    verdicts: Annotated[str | None, option("verdicts")] = default_of("verdicts"),
    reuse: Annotated[str | None, option("reuse")] = default_of("reuse"),
    prompt: Annotated[str, option("prompt")] = default_of("prompt"),
    shots: Annotated[int, option("shots")] = default_of("shots"),
    max_tokens: Annotated[int, option("max_tokens")] = default_of("max_tokens"),
    finder: Annotated[str, option("finder")] = default_of("finder"),
    keys: Annotated[str, option("keys")] = default_of("keys"),
    where: Annotated[str, option("where")] = default_of("where"),
    layers: Annotated[str, option("layers")] = default_of("layers"),
    grouping: Annotated[str, option("grouping")] = default_of("grouping"),
    delta: Annotated[str, option("delta")] = default_of("delta"),
    folds: Annotated[int, option("folds")] = default_of("folds"),
    fold_seeds: Annotated[int, option("fold_seeds")] = default_of("fold_seeds"),
    C: Annotated[float, option("C", "--C")] = default_of("C"),
    balance: Annotated[str, option("balance")] = default_of("balance"),
    resamples: Annotated[int, option("resamples")] = default_of("resamples"),
    seed: Annotated[int, option("seed")] = default_of("seed"),
    ablate: Annotated[str, option("ablate")] = "",
    robust: Annotated[bool, option("robust", "--robust")] = default_of("robust"),
    evidence: Annotated[str, option("evidence")] = ",".join(default_of("evidence")),
    dtype: Annotated[str, option("dtype")] = default_of("dtype"),
    device: Annotated[str, option("device")] = default_of("device"),
    revision: Annotated[str | None, option("revision")] = default_of("revision"),
    adapter: Annotated[str | None, option("adapter")] = default_of("adapter"),
    shard: Annotated[int | None, option("shard")] = default_of("shard"),
    batch_tokens: Annotated[int | None, option("batch_tokens")] = default_of("batch_tokens"),
    trust_remote_code: Annotated[bool, option("trust_remote_code", "--trust-remote-code")] = False,
    workers: Annotated[int | None, option("workers")] = default_of("workers"),
    threads: Annotated[int | None, option("threads")] = default_of("threads"),
    ray: Annotated[str | None, option("ray")] = default_of("ray"),
    gpus_per_worker: Annotated[int | None, option("gpus_per_worker")] = None,
    rank: Annotated[int | None, option("rank")] = default_of("rank"),
    world_size: Annotated[int | None, option("world_size")] = default_of("world_size"),
) -> None:
    """Asks a model questions, knocks out their subjects, and writes the ΔP figure and report.

    With no options at all: the bundled model on the built-in questions.
    """
    config = config_of({name: value for name, value in locals().items() if name != "out"})

    from anchorscope.cli.bar import Bar
    from anchorscope.pipeline.run import run as run_pipeline

    with Bar() as bar:
        view = run_pipeline(out=out, config=config, progress=bar)
    if rank is not None:
        echo(rank_done(config))
        return
    if ablate:
        echo(view.ablation.round(2).to_string(index=False))
    if robust:
        echo(view.robust.round(2).to_string(index=False))
    report = view.path / "report.html"
    echo(f"Report: {report}" if report.is_file() else f"Tables: {view.path / 'tables'}")


def rank_done(config: Config) -> str:
    """What is said at the end of one rank."""
    return (
        f"The shards of rank {config.rank} of {config.world_size} are done. When all ranks are, the"
        " same command without --rank and --world-size finishes the run."
    )


def config_of(options: dict[str, Any]) -> Config:
    """The config that the options of the command line ask for."""
    read = {"data": _words, "ablate": _words, "evidence": _evidence, "limit": limit_of}
    given = {name: read[name](text) if name in read else text for name, text in options.items()}
    return Config(**given)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _evidence(text: str) -> tuple[str, ...]:
    named = {"all": EVIDENCE, "none": ()}
    return named.get(text.strip(), _words(text))


def limit_of(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--limit is '{text}'. Accepted: a number of questions, or all.")
    return int(text)
