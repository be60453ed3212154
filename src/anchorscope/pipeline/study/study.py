"""A study run whole: model after model into its own run folder, then the page over all of them.

A model that fails does not stop the others. What is finished is not done again, so the same call
goes on where it was stopped.
"""

from __future__ import annotations

import gc
import shutil
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError, user_path
from anchorscope.models import Model, load_model
from anchorscope.pipeline.run import run
from anchorscope.pipeline.study.check import Planned, check_study, this_machine
from anchorscope.pipeline.study.file import Made, Study, StudyModel, read_study
from anchorscope.pipeline.study.hardware import Hardware
from anchorscope.pipeline.study.overview import Outcome, write_costs, write_overview
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.info import read_info
from anchorscope.run_folder.view import RunView
from anchorscope.run_folder.whole import put_whole


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A study's folder, the finished runs by model, and the error of each that failed."""

    path: Path
    runs: Mapping[str, RunView]
    errors: Mapping[str, str]


def study(
    study: str | Path | Study,
    *,
    out: str | Path,
    on: Hardware | None = None,
    max_hours: float | None = None,
    drop_states: bool = False,
    progress: Progress | None = None,
) -> StudyResult:
    """The study in folder `out`, continued where it stopped; checked whole before it starts.

    `drop_states` removes the states of each run when it is finished: they are most of the disk, and
    only a further analysis would read them again. With the option `rank` only that rank's shards of
    each run are computed, and no run is finished.

    `study` is a shipped name, a .toml file, or a `Study`, whose models may be made by a function
    when their turn comes: `StudyModel(name=..., model=..., panel=..., made=Made(make=function))`.

    Examples:
        >>> import anchorscope as anc
        >>> result = anc.study("quick", out="runs/quick")  # doctest: +SKIP
        >>> result.runs["SmolLM2-135M-Instruct"].delta_p()  # doctest: +SKIP

    """
    study = study if isinstance(study, Study) else read_study(study)
    folder, listener = user_path(out), progress or Quiet()
    checked = check_study(
        study, folder, on or this_machine(), max_hours=max_hours, drop_states=drop_states
    )
    checked.require_sound()
    shares = any(planned.config.rank is not None for planned in checked.planned)
    outcomes: list[Outcome] = []
    for number, planned in enumerate(checked.planned, start=1):
        listener.note(f"{planned.model.name} ({number} of {len(checked.planned)})")
        outcomes.append(_outcome(planned, folder, listener))
        _let_go()  # out here no frame and no traceback holds the model any more
        if shares:  # nothing is finished until the study is run without a rank
            continue
        if drop_states and outcomes[-1].view is not None:
            shutil.rmtree(folder / planned.model.name / "states", ignore_errors=True)
        write_costs(folder, outcomes)
    if not shares:
        write_overview(study, folder, outcomes)
    views = {o.planned.model.name: o.view for o in outcomes if o.view is not None}
    return StudyResult(
        path=folder,
        runs={} if shares else views,
        errors={o.planned.model.name: o.error for o in outcomes if o.error is not None},
    )


def _outcome(planned: Planned, folder: Path, progress: Progress) -> Outcome:
    """One model's run, or the error that ended it, put down in errors/<model>.txt."""
    name = planned.model.name
    report = folder / "errors" / f"{name}.txt"
    _forget_peak()
    try:
        view = _run(planned, folder / name, progress)
    except Exception as error:  # whatever it is, the other models go on
        said = _said(error)
        progress.note(f"{name} failed: {said}")
        with suppress(UserError):  # a full disk: what failed is said all the same
            put_whole(report, "".join(traceback.format_exception(error)))
        return Outcome(planned=planned, view=None, error=said, **_taken(folder / name))
    report.unlink(missing_ok=True)
    return Outcome(planned=planned, view=view, error=None, **_taken(folder / name))


def _run(planned: Planned, folder: Path, progress: Progress) -> RunView:
    """The finished run of one model. Options of `run` itself, beside its config, belong here.

    Its questions are loaded by their names once more, so that other processes that take part in
    the run find them in run.json.
    """
    model: Any = None
    if planned.model.made is not None:
        model = planned.model.model  # a name is enough for a folder that is finished
        if not (read_info(folder) or {}).get("finished"):
            model = _make(planned.model, planned.model.made)
    view = run(model, out=folder, config=planned.config, progress=progress)
    # A file may be called anything: over all runs a model has the study's name for it.
    return RunView(view.path, {**view.info, "model": {**view.model, "name": planned.model.name}})


def _make(model: StudyModel, made: Made) -> Model:
    """The model that a function gives, under the study's name for it."""
    parts = made.make()
    lm, tokenizer = parts if isinstance(parts, tuple) else (parts, None)
    return replace(load_model(lm, tokenizer=tokenizer), name=model.name, source=model.model)


def _taken(folder: Path) -> dict[str, float]:
    """The memory and disk that a run took, before anybody removes anything of it."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {"peak": peak_memory(), "disk": float(sum(file.stat().st_size for file in files))}


def _said(error: Exception) -> str:
    """The error in one line; the user's own mistakes are a sentence already."""
    line = next(iter(str(error).strip().splitlines()), "")
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {line}"


def _let_go() -> None:
    """Frees what a model held, before the next is loaded."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _forget_peak() -> None:
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> float:
    """The most bytes held at once: of the GPU where there is one, else of this process."""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # not on Windows
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
