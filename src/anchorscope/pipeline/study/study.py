"""A study run whole: model after model into its own run folder, then the page over all of them.

A model that fails does not stop the others. What is finished is not done again, so the same call
goes on where it was stopped.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchorscope.errors import UserError
from anchorscope.models import Model, load_model
from anchorscope.pipeline.run import run
from anchorscope.pipeline.study.check import Checked, Planned, check_study, this_machine
from anchorscope.pipeline.study.file import Study, read_study
from anchorscope.pipeline.study.hardware import Hardware
from anchorscope.pipeline.study.overview import Outcome, write_costs, write_overview
from anchorscope.pipeline.study.sizes import Size
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.store import read_info
from anchorscope.run_folder.view import RunView


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
    sizes: Mapping[str, Size] | None = None,
    max_hours: float | None = None,
    progress: Progress | None = None,
) -> StudyResult:
    """The study in folder `out`, continued where it stopped; checked whole before it starts.

    `study` is a shipped name, a .toml file, or a `Study`, whose models may be made by a function
    when their turn comes: `StudyModel(name=..., model=..., panel=..., build=function)`.

    Example:
        result = study("quick", out="runs/quick")
        result.runs["SmolLM2-135M-Instruct"].delta_p()

    """
    study = study if isinstance(study, Study) else read_study(study)
    folder, listener = Path(out).expanduser(), progress or Quiet()
    checked = check_study(study, folder, on or this_machine(), sizes=sizes, max_hours=max_hours)
    checked.require_sound()
    outcomes: list[Outcome] = []
    for number, planned in enumerate(checked.planned, start=1):
        listener.note(f"{planned.model.name} ({number} of {len(checked.planned)})")
        outcomes.append(_outcome(planned, folder, listener))
        write_costs(folder, outcomes)
    write_overview(study, folder, outcomes)
    return StudyResult(
        path=folder,
        runs={o.planned.model.name: o.view for o in outcomes if o.view is not None},
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
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        return Outcome(planned=planned, view=None, error=said, peak=peak_memory())
    finally:
        _let_go()
    report.unlink(missing_ok=True)
    return Outcome(planned=planned, view=view, error=None, peak=peak_memory())


def _run(planned: Planned, folder: Path, progress: Progress) -> RunView:
    """The finished run of one model.

    Its questions are loaded by their names once more, so that other processes that take part in
    the run find them in run.json.
    """
    model: Any = None
    if planned.model.build is not None:
        model = planned.model.model  # a name is enough for a folder that is finished
        if not (read_info(folder) or {}).get("finished"):
            model = _made(planned)
    return run(model, out=folder, config=planned.config, progress=progress)


def _made(planned: Planned) -> Model:
    """The model that a function gives, under the study's name for it."""
    assert planned.model.build is not None
    made = planned.model.build()
    lm, tokenizer = made if isinstance(made, tuple) else (made, None)
    loaded = load_model(lm, tokenizer=tokenizer)
    return replace(loaded, name=planned.model.name, source=planned.model.model)


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


def plan(
    study: Study, out: Path, on: Hardware, *, sizes: Mapping[str, Size] | None = None
) -> Checked:
    """What the study would cost on this hardware, and what is wrong with it."""
    return check_study(study, out, on, sizes=sizes, here=False)
