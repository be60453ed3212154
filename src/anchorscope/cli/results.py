"""Commands on a finished run: figures, pages, the app, tables, exports, and checks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from anchorscope.cli.model import LOADED, load_named
from anchorscope.cli.options import (
    MODEL_HELP,
    FinishedRun,
    NewFile,
    NoOpen,
    Port,
    SomeData,
    argument,
    flag,
    option,
    with_config,
)
from anchorscope.cli.terminal import (
    Bar,
    Terminal,
    echo,
    plain_table,
    quiet_libraries,
    require_packages,
)
from anchorscope.config import Config, words
from anchorscope.errors import UserError, unknown
from anchorscope.records import MODES, Estimate

if TYPE_CHECKING:
    import pandas as pd

    from anchorscope.pathways.power import Power
    from anchorscope.run_folder.manifest import Checked
    from anchorscope.show.claims import Block

PASSWORD = "ANCHORSCOPE_PASSWORD"
FORMATS = (".png", ".svg", ".pdf")
COLOURS = {
    "holds": "green", "fails": "red", "undecided": "yellow", "not shown": "dim",
    "not measured": "dim",
}  # fmt: skip
# Smallest effects found: loss of half of the samples, its ΔP, share of Q, with their intervals.
EFFECTS = [f"{name}{end}" for name in ("loss", "delta_p", "share") for end in ("", "_low", "_high")]
# Advice on findings that more questions do not change.
ADVICE = {
    "explained": "More questions do not change that: ask one kind of question alone, or mend what "
    "the groups are explained by.",
    "no-effect": "See first that the right tokens are cut: exact tokens are in samples.parquet.",
}


def figure(
    runs: Annotated[list[Path], argument("Run folders, one panel for each model.")],
    out: Annotated[Path, option("A .png, .svg or .pdf file.")] = Path("delta_p.pdf"),
    mode: Annotated[
        str | None, option("paper, strict, or both; default: both, or strict with --style.")
    ] = None,
    style: Annotated[
        str | None,
        option("paper (7 inches wide) or slides (16:9); the caption is printed, not drawn."),
    ] = None,
) -> None:
    """Draw ΔP by layer: solid for Q-anchored, dashed for A-anchored, a panel for each model."""
    if out.suffix not in FORMATS:
        raise unknown("figure format", out.suffix or out.name, FORMATS)
    mode = mode or ("both" if style is None else "strict")
    if mode not in (*MODES, "both"):
        raise unknown("mode", mode, (*MODES, "both"))
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.canvas import save_figure
    from anchorscope.show.figures import STYLES, caption_of, plot_delta_p

    if style is not None and style not in STYLES:
        raise unknown("style", style, STYLES)
    chosen: Any = style and STYLES[style]
    views = [RunView.open(run) for run in runs]
    drawn = plot_delta_p(views, mode=mode, style=chosen)  # type: ignore[arg-type]
    options: dict[str, Any] = {"formats": (out.suffix[1:],)}
    options |= {"dpi": chosen.dpi} if chosen else {}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_figure(drawn, out.with_suffix(""), **options)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}. Choose another --out."
        ) from error
    echo(str(out))
    if chosen is not None:
        echo(f"Caption: {caption_of(views, mode=mode)}")  # type: ignore[arg-type]


def view(
    runs: Annotated[list[Path], argument("A run folder, or two with the same questions.")],
    out: Annotated[
        Path | None, option("The page; without it, view.html in the first run folder.")
    ] = None,
    no_open: NoOpen = False,
) -> None:
    """Write a page to browse a finished run: figures, samples, tokens.

    It needs no model, no server and no network. Two runs are shown side by side, joined by
    question id. The address holds the current view, so a link reproduces it.
    """
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.view_page import write_view

    page = write_view([RunView.open(run) for run in runs], out)
    echo(f"View: {page}")
    if not no_open:
        open_in_browser(page.resolve().as_uri())


def open_in_browser(address: str) -> bool:
    """Open the address in a browser without waiting; False where there is no screen.

    Without a screen there is no browser, or one that would take over the terminal.
    """
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if screen:
        subprocess.Popen(
            [sys.executable, "-m", "webbrowser", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return screen


@with_config(*LOADED)
def app(
    config: Config,
    run: Annotated[
        Path | None, argument("A finished run; without it, a small one is made and kept.")
    ] = None,
    model: Annotated[
        str | None, option(f"The run's model; {MODEL_HELP}; without a run, `bundled`.")
    ] = None,
    detector: Annotated[str | None, option("A detector's folder, or a hub repository.")] = None,
    port: Port = 7860,
    listen: Annotated[
        str, option(f"Another address of this machine; needs a password in {PASSWORD}.")
    ] = "127.0.0.1",
    no_open: NoOpen = False,
) -> None:
    """Serve a page to ask a model live and inspect its answers, token by token.

    It shows the answer as it grows with its probability of being wrong, the pathway, and the
    belief by layer, clean and with any tokens cut. It listens on 127.0.0.1 alone.
    """
    require_packages("app", "app", "fastapi", "uvicorn")
    from anchorscope.app.page import USER, AppState, guarded_app, kept_run
    from anchorscope.detect.detector import Detector
    from anchorscope.run_folder.view import RunView
    from anchorscope.web import server as http

    if listen in ("0.0.0.0", "::", ""):  # nosec B104: this refuses it
        raise UserError(
            f"--listen '{listen}' is every address. Accepted: one address of this machine, the one "
            "that visitors type, so that no other name can be used to reach it."
        )
    password = None if listen == http.LOCAL else os.environ.get(PASSWORD, "")
    http.check_listener(listen, password, variable=PASSWORD, least=8)
    bound = http.bind(listen, port)
    view = None if run is None else RunView.open(run)
    trained = None if detector is None else Detector.load(detector)
    with Bar() as bar:
        bar.note("Loading the model ...")
        loaded = load_named(
            {} if view is None else view.model, run, model=model, config=config,
        )  # fmt: skip
        if view is None:
            bar.note("No run was given: probes are trained on built-in questions, once, and kept.")
            view = kept_run(loaded, progress=bar)
        bar.note("Checking the knockout on the model, and asking once to warm up ...")
        state = AppState(loaded, view, trained)
        state.warm()
    server = http.Server(guarded_app(state, hosts=http.hosts_of(bound), password=password))
    address = http.start_listening(bound)
    echo(f"Open {address} in a browser. Ctrl-C ends it.")
    if password is not None:
        echo(f"The name is {USER}. The password travels in the clear: use a tunnel.")
    if not no_open:
        open_in_browser(address)
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the server
        server.run(sockets=[bound])


def export(
    run: FinishedRun,
    to: Annotated[str, option("numpy, hf (datasets), or probelab.")],
    out: Annotated[Path, option("The folder to write; it must be new or empty.")],
    passes: Annotated[
        str, option("Whose states, joined by commas: clean, knockout, neutral, ...")
    ] = "clean",
    data: SomeData = "",
) -> None:
    """Write the states at the probe position and their labels in another tool's format.

    numpy: <pass>.npy [sample, layer, width], which can be memory-mapped. hf: a folder for
    datasets.load_from_disk, a column for each layer. probelab: <pass>.h5 for its load_hdf5. The
    label is 1 for a wrong answer; abstentions are left out. It ends with the lines that load it.
    """
    from anchorscope.run_folder.export import FORMATS, Material, write
    from anchorscope.run_folder.view import RunView

    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    view = RunView.open(run, collected_ok=True)
    material = Material.select(view, passes=words(passes), datasets=words(data) or view.datasets)
    quiet_libraries()
    lines = write(material, to, out)
    samples, layers, width = material.shape
    echo(f"{samples} samples, {layers} layers, width {width}: {out}. To load them:")
    for line in lines:
        echo(f"  {line}")


def claims(
    runs: Annotated[list[Path], argument("Run folders; two models are compared.")],
    out: NewFile = None,
    no_statements: Annotated[
        bool, flag("--no-statements", "Leave out what each claim states.")
    ] = False,
) -> None:
    """Print the decision on each claim in both modes, with a column for each dataset.

    One run's table is its tables/claims.csv. With several runs it also compares the models, and
    the correction for many claims covers all of them.
    """
    from anchorscope.run_folder.view import RunView
    from anchorscope.show.claims import claims_of, grouped_claims, single_columns

    for run in runs:
        if sum(run.resolve() == other.resolve() for other in runs) > 1:
            raise UserError(f"'{run}' is given twice. Give each run folder once.")
    views = [RunView.open(run) for run in runs]
    table = claims_of(views)
    blocks = grouped_claims(table, single_columns(views))
    console = Terminal()
    for block in blocks:
        console.print(claim_table(block, models=len(views) > 1))
        console.print()
    if not no_statements:
        console.print(legend(blocks))
    if out is not None:
        table.to_csv(out, index=False)
        echo(str(out))


def claim_table(block: Block, *, models: bool) -> Table:
    """Make a table with a row for each claim and mode and a column for each dataset."""
    from anchorscope.show.html import short

    table = plain_table(block.title, "")
    for column in block.columns:
        lines = [column.dataset.replace(",", ", ") if block.kind == "datasets" else column.dataset]
        lines += column.model.split(", ") if models else []
        finding = block.finding(column)
        lines += [f"finding: {finding}"] if finding else []
        table.add_column(Text("\n".join(lines)), overflow="fold")
    for row in block.rows:
        for mode in MODES:
            texts = []
            for cell in map(row.cells.get, block.columns):
                text = Text()  # a claim need not be about every dataset
                if cell is not None:
                    decision = str(cell[f"{mode}_decision"])
                    text.append(decision, COLOURS.get(decision, ""))
                    text.append(f" {short(float(cell[f'{mode}_value'])).replace('−', '-')}")
                texts.append(text)
            table.add_row(Text(row.claim if mode == MODES[0] else "", style="bold"), mode, *texts)
    return table


def legend(blocks: Sequence[Block]) -> Table:
    """List what each claim states."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim")
    for block in blocks:
        if block.kind == "figure":  # each model has a figure of its own
            table.add_row("", Text(block.columns[0].model, style="italic"))
        for row in block.rows:
            table.add_row(Text(row.claim), Text(row.statement))
    return table


def verify(
    folder: Annotated[Path, argument("A run, a detector's folder, or a study.")],
    deep: Annotated[
        bool, flag("--deep", "Compute every table again from the stored answers and states.")
    ] = False,
) -> None:
    """Verify a run, a detector or a study: checksums, format and versions, one line each.

    Exit code 1 where something is wrong; each such line says what to do. No model is loaded.
    """
    console = Terminal(soft_wrap=True)
    seen, wrong = 0, 0
    for checked in _checks(folder, deep=deep):
        seen, wrong = seen + 1, wrong + (not checked.ok)
        console.print("[green]ok   [/] " if checked.ok else "[red]WRONG[/] ", end="")
        console.print(str(checked), markup=False)
    result = f"{wrong} of {seen} wrong" if wrong else f"{seen} checks, all well"
    console.print(result, markup=False)
    if wrong:
        raise typer.Exit(1)


def _checks(folder: Path, *, deep: bool) -> Iterator[Checked]:
    """Yield the checks of a run, of a detector, or of every run of a study."""
    from anchorscope.run_folder.manifest import MARKERS, RUN

    folder = folder.expanduser()
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'. Give a run's or a detector's folder.")
    if (folder / RUN).exists() or (folder / MARKERS).is_dir():
        yield from _checks_of_run(folder, deep=deep)
        return
    if (folder / "detector.json").exists() or (folder / "detector.safetensors").exists():
        from anchorscope.detect.saved import verify_detector

        yield from verify_detector(folder, deep=deep)
        return
    runs = sorted(file.parent for file in folder.glob(f"*/{RUN}"))
    if not runs:
        raise UserError(
            f"'{folder}' holds no run.json and no detector.json. Give what --out named."
        )
    for run in runs:
        for checked in _checks_of_run(run, deep=deep):
            yield replace(checked, name=f"{run.name}/{checked.name}")


def _checks_of_run(folder: Path, *, deep: bool) -> Iterator[Checked]:
    from anchorscope.run_folder.manifest import verify_run

    wrong = False
    for checked in verify_run(folder):
        wrong = wrong or not checked.ok
        yield checked
    if deep and not wrong:  # from damaged files nothing would be learnt
        from anchorscope.pipeline.analyse import recomputed

        quiet_libraries()
        with Bar() as bar:
            results = list(recomputed(folder, progress=bar))
        yield from results


def power(
    run: FinishedRun,
    data: SomeData = "",
    worlds: Annotated[int, option("Planted worlds behind each number.", min=10)] = 40,
    out: NewFile = None,
) -> None:
    """Estimate the smallest effect that a run, or one 2 or 4 times its size, finds in 80 %.

    Two pathways are planted in the run's own readings: half of the samples lose a part of their
    belief, or a part of the samples loses all of it. It also prints which layer's probe reads best,
    and whether that is better than chance.
    """
    from anchorscope.pathways.power import power_of_run
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    Config.restore(dict(view.config))  # one of another kind is refused before any work
    names = words(data) or view.datasets
    for name in names:
        if name not in view.datasets:
            raise unknown("dataset", name, view.datasets)
    _ = view.findings, view.probes, view.answers  # an error in them comes before any work
    powers = []
    for name in names:
        with Bar() as bar:
            bar.note(f"{name}: planting worlds ...")
            powers.append(power_of_run(view, name, worlds=worlds))
    table = power_table(powers)
    shown = table[["dataset", "usable", "questions", *EFFECTS]].round(2)
    echo(shown.to_string(index=False, na_rep="beyond reach"))
    for one in powers:
        echo(power_sentences(one))
    if out is not None:
        table.to_csv(out, index=False)
        echo(str(out))


def power_sentences(power: Power) -> str:
    """Describe the power of one dataset in sentences."""
    parts = [f"{power.dataset}: {power.finding} ({power.why})."]
    if not math.isnan(power.now["power_half"]):
        parts.append(
            f"Had half of the samples lost their belief, this run would have found two pathways "
            f"in {power.now['power_half']:.0%}; had a fifth, in {power.now['power_fifth']:.0%}."
        )
    parts += [ADVICE[power.finding]] if power.finding in ADVICE else []
    probe = power.probe
    parts.append(
        f"The probe of layer {probe.layer} of {probe.layers} reads {probe.right} right and "
        f"{probe.wrong} wrong answers with AUROC {probe.auroc.value:.2f} "
        f"({probe.auroc.low:.2f} to {probe.auroc.high:.2f}), shuffled labels "
        f"with {min(probe.shuffled):.2f} to {max(probe.shuffled):.2f}."
    )
    parts += [f"{probe.why.capitalize()}."] if probe.why else []
    return " ".join(parts)


def power_table(powers: list[Power]) -> pd.DataFrame:
    """Tabulate the power by dataset and number of samples, with intervals."""
    import pandas as pd

    rows = []
    for one in powers:
        for size in one.smallest:
            row = {
                "dataset": one.dataset,
                "finding": one.finding,
                "usable": size.n,
                # To get so many usable samples, at this run's rate.
                "questions": round(size.n * one.questions / one.n),
            }
            probe = one.probe
            for name in EFFECTS[::3]:
                row |= _with_ends(name, getattr(size, name))
            row |= {**one.now, "layer": probe.layer, "right": probe.right, "wrong": probe.wrong}
            row |= _with_ends("auroc", probe.auroc)
            row["shuffled_auroc"] = sum(probe.shuffled) / len(probe.shuffled)
            rows.append(row | {"at_chance": probe.at_chance})
    return pd.DataFrame(rows)


def _with_ends(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def verdicts(
    run: FinishedRun,
    out: Annotated[Path, option("The .csv file to write.")] = Path("doubtful.csv"),
    most: Annotated[int, option("At most so many rows, the most doubtful ones.", min=1)] = 100,
) -> None:
    """Write the answers whose verdict may be wrong, for you to check and correct.

    Near spellings, parts of an accepted answer, accepted answers among other words, numbers, words
    of abstention. Correct the columns right and abstained (1 or 0); --verdicts of `anchorscope run`
    takes the file as it is, and --reuse takes over the run's answers and states.
    """
    if out.suffix != ".csv":
        raise UserError(f"--out is '{out}'. Accepted: a .csv file.")
    from anchorscope.answers.verdicts import doubt_table, doubtful
    from anchorscope.pipeline.request import command_of
    from anchorscope.run_folder.view import RunView

    view = RunView.open(run)
    samples = [sample for sample in view.answers if sample.question.answers]
    if not samples:
        raise UserError(f"'{run}' has no accepted answers to compare with, only given verdicts.")
    pairs = doubtful(samples)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        doubt_table(pairs[:most]).to_csv(out, index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error
    echo(
        f"{len(pairs)} of {len(samples)} verdicts are in doubt; {len(pairs[:most])} of them are in "
        f"{out}, "
        "the most doubtful first. Correct the columns right and abstained there, then:"
    )
    config = Config.restore({**view.config, "verdicts": str(out), "reuse": str(view.path)})
    corrected = view.path.with_name(f"{view.path.name}-corrected")
    echo(f"  {command_of(config, corrected)}")
