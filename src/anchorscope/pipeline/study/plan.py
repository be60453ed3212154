"""Plan a study: list its problems, and estimate the disk space and hours of each run.

No weights are read or downloaded: sizes come from the models' configs. Hours are given only for a
run that has begun, at the speed of the shards that it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from transformers import AutoConfig

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.models.load import unreadable
from anchorscope.models.locate import config_source
from anchorscope.pipeline.read_states import count_passes
from anchorscope.pipeline.request import question_sets, resolve
from anchorscope.pipeline.study.file import Study, StudyModel
from anchorscope.records import QuestionSet
from anchorscope.run_folder.disk import GB, check_room, check_writable, disk_bytes
from anchorscope.run_folder.manifest import read_info

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One model of a study, the config of its run, and that run's disk space and hours."""

    model: StudyModel
    config: Config
    sets: Sequence[QuestionSet]
    disk: float  # bytes of the run folder
    hours: float | None  # of reading left, at measured speed; None: no speed is measured
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every run of a study, and the study's problems."""

    runs: Sequence[PlannedRun]
    problems: Sequence[str]

    def require_sound(self) -> None:
        """Raise a UserError that lists all problems, if there are any."""
        if self.problems:
            lines = "\n".join(f"- {problem}" for problem in self.problems)
            count = len(self.problems)
            raise UserError(f"The study was not started. To fix ({count}):\n{lines}")


def plan_study(
    study: Study, out: Path, *, drop_states: bool = False, check_disk: bool = True
) -> Plan:
    """Plan a study in folder `out`; no run is started and no folder is made."""
    problems: list[str] = []

    def attempt(name: str, make: Callable[[], Result]) -> Result | None:
        try:
            return make()
        except UserError as error:
            problems.append(f"{name}: {error}")
            return None

    try:
        first = study.config(study.models[0])
    except UserError:  # which is a problem of that model
        first = Config()
    loaded = [
        attempt(name, lambda name=name: question_sets(None, replace(first, data=(name,))))
        for name in study.data
    ]
    sets = [questions for some in loaded for questions in some or ()]
    names = [questions.name for questions in sets]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"Two question sets are named '{name}'. Rename a file.")
    planned = [
        attempt(model.name, lambda model=model: _plan_run(study, model, sets, out / model.name))
        for model in study.models
    ]
    runs = [run for run in planned if run is not None]
    needed = [run.disk for run in runs if not run.finished]
    if check_disk:
        attempt("--out", lambda: check_writable(out))
        most = max(needed, default=0.0) if drop_states else sum(needed)
        attempt("--out", lambda: check_room(out, most))
    return Plan(runs=runs, problems=problems)


def _plan_run(
    study: Study, model: StudyModel, sets: Sequence[QuestionSet], folder: Path
) -> PlannedRun:
    """Plan the run of one model."""
    config = study.config(model)
    shape = model_shape(config)
    if config.verdicts and len(sets) == len(study.data):
        resolve(None, list(sets), config)  # raises an error where they are on other questions
    info = (read_info(folder) if folder.is_dir() else None) or {}
    finished = bool(info.get("finished"))
    return PlannedRun(
        model=model,
        config=config,
        sets=sets,
        disk=disk_bytes(sum(map(len, sets)), *shape, count_passes(config)),
        hours=None if finished else _hours_left(folder, info, sets),
        finished=finished,
    )


def _hours_left(folder: Path, info: dict[str, Any], sets: Sequence[QuestionSet]) -> float | None:
    """Estimate the hours of reading left in a run; None before its first shard."""
    spent = info.get("stages", {}).get("answers and states", {}).get("seconds")
    read = len(list((folder / "answers").glob("*.parquet")))
    if not spent or not read or "shard" not in info:
        return None
    shards = sum(-(-len(questions) // info["shard"]) for questions in sets)
    return max(0, shards - read) * spent / read / 3600


def model_shape(config: Config) -> tuple[int, int]:
    """Number of blocks and width of a run's model, from its config on disk or on the hub."""
    trusted = config.trust_remote_code
    try:
        place, options = config_source(config.model)
        # Explicit: transformers otherwise asks at the terminal whether to run the model's code.
        read = AutoConfig.from_pretrained(
            place, revision=config.revision, trust_remote_code=trusted, **options
        ).get_text_config()
        return int(read.num_hidden_layers), int(read.hidden_size)
    except UserError:
        raise
    except Exception as error:  # a config that makes no sense ends in any error
        raise unreadable(config.model, error, trusted=trusted) from error


def plan_rows(plan: Plan) -> list[dict[str, str]]:
    """The plan as table rows, one for each model: questions, disk space, hours left."""
    return [
        {
            "model": run.model.name,
            # A model's name in the study need not say what is loaded.
            "loads": " ".join(
                filter(None, (run.config.model, run.config.revision, run.config.adapter))
            ),
            "questions": f"{sum(map(len, run.sets)):,}",
            "GB of disk": f"{run.disk / GB:.2f}",
            "finished": "yes" if run.finished else "",
            "hours left": "" if run.hours is None else f"{run.hours:.2f}",
        }
        for run in plan.runs
    ]
