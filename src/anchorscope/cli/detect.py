"""`anchorscope detect`: evaluate, train, use and share detectors of wrong answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anchorscope.cli.model import LOADED, load_named
from anchorscope.cli.options import (
    AsDataset,
    DetectorFolder,
    DetectorModel,
    Port,
    SomeData,
    argument,
    flag,
    option,
    with_config,
)
from anchorscope.cli.run import collect
from anchorscope.cli.terminal import Bar, Terminal, echo, plain_table, require_packages
from anchorscope.config import Config, words
from anchorscope.errors import UserError, unknown

if TYPE_CHECKING:
    from anchorscope.detect.detector import Detector

detect = typer.Typer(no_args_is_help=True, help="Detectors of wrong answers.")


detect.command("collect")(collect)

API_KEY = "ANCHORSCOPE_API_KEY"
Seed = Annotated[int, option("Seed of folds and intervals.")]
Folds = Annotated[int, option("Folds.", min=3)]
Calibration = Literal["platt", "isotonic"]


@detect.command()
@with_config(*LOADED)
def serve(
    detector: DetectorFolder,
    config: Config,
    model: DetectorModel = None,
    port: Port = 8000,
    listen: Annotated[
        str, option("Another address of this machine; needs an API key.")
    ] = "127.0.0.1",
    api_key: Annotated[
        str | None,
        typer.Option(envvar=API_KEY, help=f"The key that clients send; better in {API_KEY}."),
    ] = None,
    queue: Annotated[int, option("Requests that may wait; more are refused.", min=1)] = 64,
    batch: Annotated[int, option("Most answers in one batch, and in one request.", min=1)] = 32,
    question_chars: Annotated[
        int, option("Most characters of a prompt with its history.", min=1)
    ] = 2000,
    max_tokens: Annotated[
        int, option("Most tokens of an answer, where the detector was trained on given ones.")
    ] = 256,
    request_bytes: Annotated[int, option("Most bytes of a request.", min=1)] = 1 << 16,
    request_seconds: Annotated[
        float, option("Most seconds until a request has arrived whole.", min=0.001)
    ] = 30.0,
    drain: Annotated[
        float, option("At SIGTERM, most seconds to answer the requests under way.", min=0)
    ] = 30.0,
    as_dataset: AsDataset = None,
    quiet: Annotated[
        bool, flag("--quiet", "Write no line for each request to standard error.")
    ] = False,
) -> None:
    """Serve a model's answers with their scores to OpenAI's clients, until Ctrl-C or SIGTERM.

    A single question is asked with the detector's own prompt, as the detector was evaluated; a
    conversation goes through the model's chat template. /v1/score scores answers written elsewhere.
    It listens on 127.0.0.1 alone unless --listen and an API key are given.
    """
    require_packages("detect serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    from anchorscope.detect.detector import Detector
    from anchorscope.serve.app import Limits, requests, serve_app
    from anchorscope.serve.served import Served
    from anchorscope.web import server as http

    http.check_listener(listen, api_key, variable=API_KEY, least=16)
    limits = Limits(queue=queue, batch=batch, characters=question_chars, bytes=request_bytes)
    bound = http.bind(listen, port)
    loaded = Detector.load(detector)
    _check_dataset(loaded.datasets, as_dataset)
    with Bar() as bar:
        bar.note("Loading the model ...")
        lm = load_named(loaded.model, detector, model=model, config=config)
        bar.note("Proving the detector on the model with one question ...")
        served = Served(loaded, lm, as_dataset, max_tokens=max_tokens)
        served.warm()
    guard = serve_app(served, limits=limits, key=api_key, hosts=http.hosts_of(bound))
    server = http.Server(guard, drain=drain, request_seconds=request_seconds)
    if not quiet:
        lines = logging.StreamHandler()
        lines.setFormatter(logging.Formatter('{"time": "%(asctime)s", "request": %(message)s}'))
        requests.addHandler(lines)
        requests.setLevel(logging.INFO)
        requests.propagate = False
    address = http.start_listening(bound)
    echo(
        f"{served.model.name} with the detector '{served.detector.name}' at {address}v1. "
        "Ctrl-C ends it."
    )
    if listen != http.LOCAL:
        echo("The key and all text travel in the clear: put TLS in front.")
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the server
        server.run(sockets=[bound])


def _check_dataset(trained_on: Sequence[str], dataset: str | None) -> None:
    """Raise a UserError unless it is clear which training dataset's prompt to use."""
    if dataset is None and len(trained_on) > 1:
        raise UserError(
            f"The detector was trained on {len(trained_on)} datasets, each asked with its own "
            f"prompt: {', '.join(trained_on)}. Say which of them the questions will be like: --as "
            f"{trained_on[0]}."
        )
    if dataset is not None and dataset not in trained_on:
        raise unknown("dataset of the detector", dataset, trained_on)


@detect.command("eval")
def evaluate(
    runs: Annotated[list[Path], argument("Finished runs of one model.")],
    out: Annotated[
        Path | None, option("Where tables/ and figures/ go; default: the first run.")
    ] = None,
    methods: Annotated[str, option("Detectors, joined by commas; default: all, and auto.")] = "",
    transfer: Annotated[
        bool, flag("--transfer", "Also train on each dataset and test on every other.")
    ] = False,
    peer: Annotated[
        list[Path] | None, option("Control: a run of another model on the same questions.")
    ] = None,
    limit: Annotated[
        int | None, option("Answers of each dataset, as many right as wrong; default: all.", min=40)
    ] = None,
    folds: Folds = 5,
    seed: Seed = 0,
    resamples: Annotated[
        int | None,
        option("Bootstrap resamples; default: as many as the comparisons need.", min=100),
    ] = None,
) -> None:
    """Evaluate detectors on runs, with random and entity-disjoint folds side by side."""
    from anchorscope.detect.evaluate import study
    from anchorscope.run_folder.disk import check_writable
    from anchorscope.run_folder.store import Store
    from anchorscope.run_folder.view import RunView
    from anchorscope.show import write_report
    from anchorscope.show.detectors import write_detect_figures

    names = words(methods)
    folder = out or runs[0]
    check_writable(folder)
    store = Store(folder)
    with Bar() as bar:
        result = study(
            runs, peers=peer or (), names=names, transfer=transfer, limit=limit,
            folds=folds, seed=seed, resamples=resamples, progress=bar,
            keep=lambda found: found.write(folder),
        )  # fmt: skip
    files = result.write(folder)
    files += write_detect_figures(folder, result.scores, result.transfer)
    _print_table(result.table)
    for row in result.claims.to_dict("records"):
        echo(f"{row['statement']}, {row['dataset']}: {decisions(row)}")
    echo("\n".join(str(file) for file in files if file.suffix in (".csv", ".md", ".png")))
    if (folder / "report.html").is_file():  # an analysed run: its report has these claims too
        files.append(write_report(RunView.open(folder)))
        echo(str(files[-1]))
    if store.info:  # a run folder, which lists what was added
        store.add(*(file.relative_to(folder).as_posix() for file in files))
        store.relist()


@detect.command()
def train(
    run: Annotated[Path, argument("A finished run.")],
    out: Annotated[Path, option("The detector's folder.")],
    method: Annotated[
        str,
        option(
            "auto, combined, probe, entity-log-prob; or semantic-entropy, self-check, which draw "
            "answers for each that they score."
        ),
    ] = "auto",
    data: SomeData = "",
    folds: Folds = 5,
    seed: Seed = 0,
    risk: Annotated[
        float | None, option("Keep wrong answers below the threshold to at most this share.")
    ] = None,
    calibration: Annotated[Calibration, option("From score to probability.")] = "platt",
    licence: Annotated[str, option("Licence of the detector.")] = "other",
    model_licence: Annotated[str, option("Licence of the model.")] = "not recorded",
    data_licence: Annotated[str, option("Licence of the data.")] = "not recorded",
) -> None:
    """Train a detector on a run's answers and save it with its evaluation and model card."""
    from anchorscope.detect.detector import Detector
    from anchorscope.detect.saved import check_place

    check_place(out.expanduser())
    names = words(data) or None
    licences = {"detector": licence, "model": model_licence, "data": data_licence}
    with Bar() as bar:
        detector = Detector.train(
            run, method=method, datasets=names, folds=folds, seed=seed, risk=risk,
            calibration=calibration, licence=licences, progress=bar,
        )  # fmt: skip
    detector.save(out)
    echo(detector_sentences(detector))
    echo(str(out))


def detector_sentences(detector: Detector) -> str:
    """Describe a trained detector's accuracy, threshold and promise in a few lines."""
    numbers, data = detector.evaluation, detector.trained_on
    low, high = detector.band or (detector.threshold, detector.threshold)
    lines = [
        f"{detector.method.name}: AUROC {numbers['auroc']:.3f} [{numbers['auroc_low']:.3f}, "
        f"{numbers['auroc_high']:.3f}] on unseen entities, from {data['answers']} answers "
        f"({data['wrong']} wrong) of {', '.join(data['datasets'])}.",
        f"Flags above {detector.threshold:.3f}; cannot say between {low:.3f} and {high:.3f} "
        f"({numbers['cannot_say']:.0%} of held-out answers).",
        f"Promised: {detector.promise}." if detector.promise else "",
        f"Draws {draws} answers beside each that it scores: as much again, {draws} times."
        if (draws := detector.method.samples_)
        else "",
        detector.caution,
    ]
    return "\n".join(line for line in lines if line)


@detect.command()
@with_config(*LOADED)
def score(
    detector: DetectorFolder,
    config: Config,
    file: Annotated[
        Path | None,
        argument("Rows with `question`, or with `answer` and `messages` or `prompt`; - for stdin."),
    ] = None,
    question: Annotated[str | None, option("One question instead of a file.")] = None,
    answer: Annotated[
        str | None, option("An answer to that question; default: the model's own.")
    ] = None,
    out: Annotated[
        Path | None, option("File to write, .jsonl, .csv or .parquet; default: print JSON lines.")
    ] = None,
    model: DetectorModel = None,
    before: Annotated[
        bool, flag("--before", "Score the question alone, before it is answered.")
    ] = False,
    as_dataset: AsDataset = None,
) -> None:
    """Answer a question or a file of questions, with the probability that each answer is wrong."""
    from anchorscope.detect.detector import Detector
    from anchorscope.detect.prompts import Exchange
    from anchorscope.detect.rows import (
        check_names,
        check_out,
        json_line,
        rows_to_score,
        with_score,
        write_rows,
    )
    from anchorscope.detect.scored import Scored, Warned

    if (file is None) == (question is None):
        raise UserError("Give either a file or --question, and not both.")
    if file is not None and answer is not None:
        raise UserError(
            "--answer belongs to --question. The answers to a file's questions are in its column "
            "`answer`."
        )
    if file is not None:
        rows, exchanges = rows_to_score(file)
    elif not str(question).strip():
        raise UserError("--question is empty. Give the text of a question.")
    else:
        rows = [{"question": question, "answer": answer}]
        exchanges = [Exchange(question=str(question), answer=answer)]
    check_names(rows, Warned if before else Scored)
    if out is not None:
        check_out(out, rows)
    loaded, questions = Detector.load(detector), [one.question for one in exchanges]
    with Bar() as bar:
        lm = load_named(loaded.model, detector, model=model, config=config)
        if before:
            scored = loaded.warn(lm, questions, dataset=as_dataset)
        elif all(questions):
            answers = [one.answer for one in exchanges]
            scored = loaded.score(lm, questions, answer=answers, dataset=as_dataset, progress=bar)
        else:
            scored = loaded.score_answers(lm, exchanges, dataset=as_dataset, progress=bar)
    done = [with_score(row, one) for row, one in zip(rows, scored, strict=True)]
    if out is None:
        echo("\n".join(map(json_line, done)))
        return
    write_rows(out, done)
    echo(f"{sum(one.flagged for one in scored)} of {len(done)} flagged as wrong. {out}")


@detect.command()
def push(
    folder: Annotated[Path, argument("A detector's folder.")],
    repository: Annotated[str, argument("org/name on the hub.")],
    public: Annotated[bool, flag("--public", "Make the repository public.")] = False,
) -> None:
    """Upload a detector's folder to the hub, private unless --public is given."""
    from anchorscope.detect.saved import upload

    echo(upload(folder, repository, private=not public))


def _print_table(table: Any) -> None:
    drawn = plain_table("dataset", "detector", "AUROC random", "AUROC entity")
    for (dataset, title), rows in table.groupby(["dataset", "title"], sort=False):
        numbers = rows.set_index("split").loc[["random", "entity"]].itertuples()
        cells = (f"{row.auroc:.3f} [{row.auroc_low:.3f}, {row.auroc_high:.3f}]" for row in numbers)
        drawn.add_row(str(dataset), str(title), *cells)
    Terminal().print(drawn)


def decisions(row: dict[Any, Any]) -> str:
    """Format both modes' decisions: "paper undecided (+0.002), strict fails (-0.018)"."""
    modes = [mode for mode in ("paper", "strict") if f"{mode}_decision" in row]
    return ", ".join(f"{m} {row[f'{m}_decision']} ({row[f'{m}_value']:+.3f})" for m in modes)
