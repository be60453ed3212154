"""Commands that make a run folder: run, analyse, simulate, and detect collect."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorscope.cli.terminal import Bar, echo
from anchorscope.config import EVIDENCE, Config, default_of, help_of
from anchorscope.errors import UserError

if TYPE_CHECKING:
    from anchorscope.run_folder.view import RunView

# The group of each option in `--help`; the others stand in front of them.
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


def option(name: str, *flags: str) -> Any:
    """The command-line option of a config field, with the field's help, in its group."""
    flags = flags or (f"--{name.replace('_', '-')}",)
    return typer.Option(*flags, help=help_of(name), rich_help_panel=_PANEL.get(name))


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
    skip_bad_rows: Annotated[bool, option("skip_bad_rows", "--skip-bad-rows")] = False,
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
    """Ask a model questions, knock out their subjects, and write the ΔP figure and report.

    With no options at all: the bundled model on the built-in questions. The same command continues
    a run that was stopped.

    Example: `anchorscope run --model Qwen/Qwen3-8B --data popqa,nq --limit 2000 --out runs/qwen`
    """
    config = config_of(_without(locals(), "out"))

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
    conclude(view)


def analyse(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .npz or .safetensors file with clean and knockout [sample, layer, width], z "
            "[sample], and optionally neutral, content, question, retest, retest-knockout."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; continued if it exists.")] = Path(
        "runs/states"
    ),
    title: Annotated[
        str | None, typer.Option(help="The model's name in the report; default: the file's name.")
    ] = None,
    limit: Annotated[str, typer.Option(help="Number of samples, or `all`.")] = "all",
    grouping: Annotated[str, option("grouping")] = default_of("grouping"),
    delta: Annotated[str, option("delta")] = default_of("delta"),
    folds: Annotated[int, option("folds")] = default_of("folds"),
    fold_seeds: Annotated[int, option("fold_seeds")] = default_of("fold_seeds"),
    C: Annotated[float, option("C", "--C")] = default_of("C"),
    balance: Annotated[str, option("balance")] = default_of("balance"),
    resamples: Annotated[int, option("resamples")] = default_of("resamples"),
    seed: Annotated[int, option("seed")] = default_of("seed"),
    evidence: Annotated[
        str, typer.Option(help="none, or of answer-only, boundary, awareness.")
    ] = ",".join(default_of("evidence")),
) -> None:
    """Analyse states that you extracted yourself, with the results of `run`; needs no model.

    The arrays of the file, and how to write them: docs/own-data.md.

    Example: `anchorscope analyse states.npz --out runs/mine`
    """
    config = config_of(_without(locals(), "file", "out", "title", "limit"))

    from anchorscope.pipeline.own_states import analyse as analyse_states

    with Bar() as bar:
        view = analyse_states(
            file, out=out, title=title, limit=limit_of(limit), config=config, progress=bar
        )
    conclude(view)


def collect(
    out: Out,
    answers: Annotated[
        str | None,
        typer.Option(
            help="Your own rows with messages, prompt or question, answer and label: a file, or -."
        ),
    ] = None,
    model: Annotated[str, option("model")] = default_of("model"),
    data: Data = DATA,
    limit: Limit = LIMIT,
    columns: Annotated[str | None, option("columns")] = default_of("columns"),
    skip_bad_rows: Annotated[bool, option("skip_bad_rows", "--skip-bad-rows")] = False,
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
    """Ask a model questions and keep what detectors need, without the analysis of pathways.

    A folder of `anchorscope run --evidence detectors` serves as well, and costs more. The same
    command with --samples adds sampled answers to a folder that exists.

    Example: `anchorscope detect collect --model Qwen/Qwen3-8B --data nq --out runs/material`
    """
    config = config_of(_without(locals(), "out", "answers", "samples", "temperature"))

    from anchorscope.pipeline.collect import add_samples, check_sampling, collect_answers
    from anchorscope.pipeline.collect import collect as collect_states

    if samples is not None:
        check_sampling(samples, temperature)
        if rank is not None:
            raise UserError("--samples needs all answers: leave out --rank, when all are there.")
    with Bar() as bar:
        if answers is not None:
            folder = collect_answers(answers, out=out, config=config, progress=bar)
        else:
            folder = collect_states(out=out, config=config, progress=bar)
        if samples is not None:
            add_samples(
                folder, samples=samples, temperature=temperature, config=config, progress=bar
            )
    if rank is not None:
        echo(rank_done(config))
    else:
        echo(f"Ready for `anchorscope detect eval {folder}` and `detect train {folder}`.")


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
    """Simulate hidden states with a known truth, and analyse them like those of a run.

    Example: `anchorscope simulate --world two-pathways --samples 800 --out runs/world`
    """
    options = _without(locals(), "robust", "out")

    from anchorscope.simulate import Truth
    from anchorscope.simulate import simulate as make
    from anchorscope.simulate.run import config_of as config_of_world

    truth = Truth(**options)
    with Bar() as bar:
        view = make(truth, out=out, config=config_of_world(truth, robust=robust), progress=bar)
    if robust:
        echo(view.robust.round(2).to_string(index=False))
    echo(f"Report: {view.path / 'report.html'}")


def conclude(view: RunView) -> None:
    """Print each dataset's finding in a sentence, where the report is, and what to do next."""
    from anchorscope.run_folder.view import records
    from anchorscope.show.report.findings import MEANINGS

    rows = records(view.findings)
    for row in rows:
        why = row["why"] or MEANINGS[row["finding"]][1]
        echo(f"{view.titles[row['dataset']]}: {row['finding']}: {why}.")
    report = view.path / "report.html"
    echo(f"Report: {report}" if report.is_file() else f"Tables: {view.path / 'tables'}")
    found, folder = {row["finding"] for row in rows}, shlex.quote(str(view.path))
    if "too-few" in found:
        echo("Next: ask more questions, with a larger --limit (or file) and another --out.")
    elif "cannot-tell" in found:
        echo(f"Next: anchorscope power {folder}   # how many questions would decide")
    else:
        echo(f"Next: anchorscope view {folder}   # every question, in the browser")


# --- Options to a config ---


def rank_done(config: Config) -> str:
    """The last line of a command that computed one rank's shards."""
    return (
        f"The shards of rank {config.rank} of {config.world_size} are done. When all ranks are, the"
        " same command without --rank and --world-size finishes the run."
    )


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """The options of a command but for these, which go elsewhere."""
    return {name: value for name, value in options.items() if name not in names}


def config_of(options: dict[str, Any]) -> Config:
    """The config of the options of a command."""
    read = {"data": words, "ablate": words, "evidence": _evidence, "limit": limit_of}
    fields = {name: read[name](text) if name in read else text for name, text in options.items()}
    return Config(**fields)


def words(text: str) -> tuple[str, ...]:
    """The words of a list that is joined by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _evidence(text: str) -> tuple[str, ...]:
    return {"all": EVIDENCE, "none": ()}.get(text.strip(), words(text))


def limit_of(text: str) -> int | None:
    """The number that --limit gives; None for `all`."""
    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--limit is '{text}'. Accepted: a number of questions, or all.")
    return int(text)
