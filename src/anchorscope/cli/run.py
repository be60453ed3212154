"""Commands that make a run folder, or many: run, study, analyse, simulate, detect collect."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorscope.cli.options import (
    CONFIG_OPTIONS,
    PANELS,
    STATISTICS,
    Out,
    argument,
    flag,
    option,
    with_config,
)
from anchorscope.cli.terminal import Bar, Terminal, echo, plain_table, quiet_libraries
from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.simulate.worlds import Truth

if TYPE_CHECKING:
    from anchorscope.run_folder.view import RunView


@with_config(*CONFIG_OPTIONS)
def run(config: Config, out: Out = Path("runs/main")) -> None:
    """Ask a model questions, knock out their subjects, and write the ΔP figure and report.

    With no options at all: the bundled model on the built-in questions. The same command continues
    a run that was stopped.

    Example: `anchorscope run --model Qwen/Qwen3-8B --data popqa,nq --limit 2000 --out runs/qwen`
    """
    from anchorscope.pipeline.run import run as run_pipeline

    with Bar() as bar:
        view = run_pipeline(out=out, config=config, progress=bar)
    if config.rank is not None:
        echo(rank_done(config, "run"))
        return
    if config.ablate:
        echo(view.ablation.round(2).to_string(index=False))
    if config.robust:
        echo(view.robust.round(2).to_string(index=False))
    print_findings(view)


@with_config(*STATISTICS, "evidence", evidence="none, or of answer-only, boundary, awareness.")
def analyse(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .npz or .safetensors file with clean and knockout [sample, layer, width], z "
            "[sample], and optionally neutral, content, question, retest, retest-knockout."
        ),
    ],
    config: Config,
    out: Out = Path("runs/states"),
    title: Annotated[
        str | None, option("The model's name in the report; default: the file's name.")
    ] = None,
) -> None:
    """Analyse states that you extracted yourself, with the results of `run`; needs no model.

    The arrays of the file, and how to write them: docs/own-data.md.

    Example: `anchorscope analyse states.npz --out runs/mine`
    """
    from anchorscope.pipeline.own_states import analyse as analyse_states

    with Bar() as bar:
        view = analyse_states(file, out=out, title=title, config=config, progress=bar)
    print_findings(view)


_COLLECT_LEAVES_OUT = {
    *("answers", "reuse", "batch_tokens", *PANELS["Knockout"], *STATISTICS),
    *(*PANELS["More results"], *PANELS["Many questions"]),
} - {"seed"}


@with_config(*(name for name in CONFIG_OPTIONS if name not in _COLLECT_LEAVES_OUT))
def collect(
    out: Out,
    config: Config,
    answers: Annotated[
        str | None,
        option("Your own rows with messages, prompt or question, answer and label: a file, or -."),
    ] = None,
    states: Annotated[
        str | None,
        option("A folder of states that vLLM wrote for these answers; none are computed."),
    ] = None,
    samples: Annotated[
        int | None, option("Answers sampled for each question, for detectors that compare them.")
    ] = None,
    temperature: Annotated[float, option("Temperature of the sampled answers.")] = 1.0,
) -> None:
    """Ask a model questions and keep what detectors need, without the analysis of pathways.

    A folder of `anchorscope run --evidence detectors` serves as well, and costs more. The same
    command with --samples adds sampled answers to a folder that exists.

    Example: `anchorscope detect collect --model Qwen/Qwen3-8B --data nq --out runs/material`
    """
    from anchorscope.detect.collected import check_sampling
    from anchorscope.pipeline.collect import add_samples, collect_answers
    from anchorscope.pipeline.collect import collect as collect_states

    if states is not None and answers is None:
        raise UserError("--states needs the rows that the states are of: give --answers as well.")
    if samples is not None:
        check_sampling(samples, temperature)
        if config.engine == "vllm":
            raise UserError(
                "--samples draws answers, and vLLM writes greedy ones alone here. Leave --samples "
                "out, or use --engine transformers."
            )
        if config.rank is not None:
            raise UserError("--samples needs all answers: leave out --rank, when all are there.")
    with Bar() as bar:
        if answers is not None:
            folder = collect_answers(answers, out=out, config=config, states=states, progress=bar)
        else:
            folder = collect_states(out=out, config=config, progress=bar)
        if samples is not None:
            add_samples(
                folder, samples=samples, temperature=temperature, config=config, progress=bar
            )
    if config.rank is not None:
        echo(rank_done(config, "run"))
    else:
        echo(f"Ready for `anchorscope detect eval {folder}` and `detect train {folder}`.")


@with_config("robust")
@with_config(*(one.name for one in fields(Truth)), kind=Truth, parameter="truth")
def simulate(config: Config, truth: Truth, out: Out = Path("runs/simulated")) -> None:
    """Simulate hidden states with a known truth, and analyse them like those of a run.

    Example: `anchorscope simulate --world two-pathways --samples 800 --out runs/world`
    """
    from anchorscope.simulate.run import config_of
    from anchorscope.simulate.run import simulate as simulate_world

    config = config_of(truth, robust=config.robust)
    with Bar() as bar:
        view = simulate_world(truth, out=out, config=config, progress=bar)
    if config.robust:
        echo(view.robust.round(2).to_string(index=False))
    echo(f"Report: {view.path / 'report.html'}")


# Options of each run.
_TYPED = ("trust_remote_code", "workers", "ray", "rank", "world_size", "keep_states")


@with_config(*_TYPED)
def study(
    file: Annotated[str, argument("A .toml file, or quick, published, paper, or replication.")],
    config: Config,
    out: Annotated[Path | None, option("The study's folder; runs/<study> if not given.")] = None,
    plan: Annotated[bool, flag("--plan", "Print what is to do, and start nothing.")] = False,
    limit: Annotated[
        str | None, option("Questions of each set, or `all`; overrides the file.")
    ] = None,
    place: Annotated[
        list[str] | None,
        option("NAME=PLACE: where a model or dataset of the study is. Repeatable."),
    ] = None,
    more: Annotated[
        list[str] | None,
        flag("--option", "NAME=VALUE: an option of `anchorscope run` for each run. Repeatable."),
    ] = None,
) -> None:
    """Run every model of a study on all its datasets, and write a summary, study.html.

    The whole study is checked before it starts. A model that fails does not stop the others; the
    same command continues a stopped study. Exit code 1 if a model failed.
    """
    from anchorscope.pipeline.study.file import read_study, value_of
    from anchorscope.pipeline.study.study import plan_rows, plan_study
    from anchorscope.pipeline.study.study import study as run_study

    # Values as TOML reads them; what it cannot read is text.
    options = {name: value_of(text) for name, text in _pairs(more or [], "--option").items()}
    usual = Config()
    typed = {name: getattr(config, name) for name in _TYPED}
    typed = {name: value for name, value in typed.items() if value != getattr(usual, name)}
    options = ({"limit": limit} if limit else {}) | typed | options
    chosen = read_study(file).with_places(_pairs(place or [], "--place")).with_options(options)
    folder = out or Path("runs") / Path(file).stem
    quiet_libraries()
    if plan:
        planned = plan_study(chosen, folder, check_disk=False)
        rows = plan_rows(planned)
        table = plain_table(*(rows[0] if rows else ()))
        for row in rows:
            table.add_row(*row.values())
        Terminal().print(table)
        planned.require_sound()
        return
    with Bar() as bar:
        result = run_study(chosen, out=folder, progress=bar)
    if config.rank is not None:
        echo(rank_done(config, "study"))
    else:
        echo(f"Study: {result.path / 'study.html'}")
    if result.errors:
        names, count = ", ".join(result.errors), f"{len(result.errors)} of {len(chosen.models)}"
        echo(
            f"{count} models failed ({names}): study.csv and study.html say "
            "why. The same command tries them again.",
            err=True,
        )
        raise typer.Exit(1)


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, _, value in pairs:
        if not name or not value:
            raise UserError(f"{flag} takes NAME=VALUE, not '{name}{value}'.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def print_findings(view: RunView) -> None:
    """Print each dataset's finding in a sentence, where the report is, and what to do next."""
    from anchorscope.run_folder.view import records
    from anchorscope.show.report import MEANINGS

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


def rank_done(config: Config, what: str) -> str:
    """Tell the user what to do once one rank's shards are computed."""
    return (
        f"The shards of rank {config.rank} of {config.world_size} are done. When all ranks are,"
        f" the same command without --rank and --world-size finishes the {what}."
    )
