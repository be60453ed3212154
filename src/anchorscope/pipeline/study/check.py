"""A study looked at whole before it starts: all that is wrong with it, and what it will cost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.pipeline.request import resolve
from anchorscope.pipeline.study.file import Study, StudyModel
from anchorscope.pipeline.study.hardware import GB, Hardware, hardware
from anchorscope.pipeline.study.known import known_config
from anchorscope.pipeline.study.plan import Forecast, estimate
from anchorscope.pipeline.study.sizes import Size, size_from, size_of, tokenizer_of
from anchorscope.pipeline.study.tokens import TokenCount, count_tokens
from anchorscope.records import QuestionSet
from anchorscope.run_folder.info import read_info

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One model of a study with what its run will be asked for and is expected to cost."""

    model: StudyModel
    config: Config
    counts: Sequence[TokenCount]
    forecast: Forecast | None  # None: its size is not known, as of a model that Python makes
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A study's plan, its question sets, and everything that is wrong with it."""

    planned: Sequence[Planned]
    sets: Sequence[QuestionSet]
    problems: Sequence[str]

    @property
    def hours(self) -> float:
        """Hours of what is not finished yet."""
        return sum(p.forecast.hours for p in self.planned if p.forecast and not p.finished)

    def disk(self, *, drop_states: bool = False) -> float:
        """Bytes of what is not finished yet; of the largest alone where states are dropped."""
        sizes = [p.forecast.disk for p in self.planned if p.forecast and not p.finished]
        return max(sizes, default=0.0) if drop_states else sum(sizes)

    def require_sound(self) -> None:
        """Raises with the whole list where anything is wrong."""
        if self.problems:
            lines = "\n".join(f"- {problem}" for problem in self.problems)
            count = len(self.problems)
            raise UserError(f"The study was not started. To fix ({count}):\n{lines}")


def check_study(
    study: Study,
    out: Path,
    on: Hardware,
    *,
    max_hours: float | None = None,
    drop_states: bool = False,
    here: bool = True,
) -> Checked:
    """The study checked whole; nothing slow is started and no folder is made.

    `here`: whether this machine's disk and memory must hold it, as when it is to start.
    """
    problems: list[str] = []
    sets = _sets(study, problems)
    planned = [_planned(study, model, sets, out, on, problems, here) for model in study.models]
    checked = Checked(planned=[p for p in planned if p], sets=sets, problems=problems)
    if here:
        problems += _room(checked, checked.disk(drop_states=drop_states), out, on)
    if max_hours is not None and checked.hours > max_hours:
        problems.append(
            f"It would take about {checked.hours:.1f} hours, and --max-hours is {max_hours:g}. "
            "Ask fewer questions (--limit), or give it more GPUs."
        )
    return checked


def _tried(what: Callable[[], Result], name: str, problems: list[str]) -> Result | None:
    """What `what` gives; None where it is the user's mistake, which is put down."""
    try:
        return what()
    except UserError as error:
        problems.append(f"{name}: {error}")
        return None


def _sets(study: Study, problems: list[str]) -> list[QuestionSet]:
    """Every question set, loaded once for all models; those that cannot be had are put down."""
    from anchorscope.pipeline.request import question_sets

    first = _tried(lambda: study.config(study.models[0]), study.models[0].name, [])
    limits = Config() if first is None else first
    sets: list[QuestionSet] = []
    for name in study.data:
        one = Config(data=(name,), limit=limits.limit, seed=limits.seed, columns=limits.columns)
        loaded = _tried(lambda one=one: question_sets(None, one), name, problems)
        sets += loaded or []
    names = [each.name for each in sets]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"Two question sets are named '{name}'. Rename a file.")
    return sets


def _planned(
    study: Study,
    model: StudyModel,
    sets: Sequence[QuestionSet],
    out: Path,
    on: Hardware,
    problems: list[str],
    here: bool,
) -> Planned | None:
    config = _tried(lambda: study.config(model), model.name, problems)
    if config is None:
        return None
    made = model.made
    size = made.size if made else _size(model, config, problems, here)
    tokenizer = made.tokenizer if made else tokenizer_of(config) if size else None
    counts = count_tokens(sets, tokenizer, config.shots)
    if config.verdicts and len(sets) == len(study.data):
        _tried(lambda: resolve(None, list(sets), config), model.name, problems)
    return Planned(
        model=model,
        config=config,
        counts=counts,
        forecast=None
        if size is None
        else estimate(
            config, counts, on, size=size, answer=made and made.answer, from_disk=made is None
        ),
        finished=_finished(out / model.name, problems),
    )


def _size(model: StudyModel, config: Config, problems: list[str], here: bool) -> Size | None:
    """The model's size; a plan without a connection knows the shapes of the shipped studies."""
    missing: list[str] = []
    size = _tried(lambda: size_of(config), model.name, missing)
    known = None if here or size else known_config(model.model)
    if known is not None:
        return size_from(known)
    problems += missing
    return size


def _finished(folder: Path, problems: list[str]) -> bool:
    info = _tried(lambda: read_info(folder), folder.name, problems) if folder.is_dir() else None
    return bool(info and info.get("finished"))


def _room(checked: Checked, disk: float, out: Path, on: Hardware) -> list[str]:
    """What this machine has not enough of."""
    problems = []
    there = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if disk > free:
        problems.append(
            f"{there} has {free / GB:.1f} GB free, and the run folders need about "
            f"{disk / GB:.1f} GB. Choose another --out, ask fewer questions (--limit), or give "
            "--drop-states."
        )
    if not os.access(there, os.W_OK):
        problems.append(f"{there} cannot be written. Choose another --out.")
    for planned in checked.planned:
        forecast, device = planned.forecast, planned.config.device
        if forecast is None or planned.finished or device == "balanced":
            continue
        if forecast.devices > 1:
            problems.append(
                f"{planned.model.name}: its weights take {forecast.weights / GB:.1f} GB, and one "
                f'device has {on.memory / GB:.0f} GB. Add device = "balanced", or leave it out.'
            )
    return problems


def this_machine(gpus: int | None = None, kind: str | None = None) -> Hardware:
    """The hardware named, or what this machine has where nothing is named."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if kind is not None:
        return hardware(kind, gpus or 1)
    found = _gpu()
    if found is None:
        return hardware("cpu", gpus or 1, cores=cores, memory=_main_memory())
    name, memory, count = found
    on = hardware(name, gpus or count, cores=max(1, cores // count))
    return Hardware(**{**vars(on), "memory": memory})


def _gpu() -> tuple[str, float, int] | None:
    """The kind that the first GPU counts as, its bytes, and how many there are."""
    import torch

    if not torch.cuda.is_available():
        return None
    about = torch.cuda.get_device_properties(0)
    name = about.name.lower()
    kind = next((kind for kind in ("h200", "h100", "a100", "l40s") if kind in name), "a100")
    return kind, float(about.total_memory), torch.cuda.device_count()


def _main_memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 16 * GB
