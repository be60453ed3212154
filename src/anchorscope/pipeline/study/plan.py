"""Plan a study: what is wrong with it, and what each run costs in tokens, FLOPs, bytes and hours.

Nothing of the weights is read or downloaded: sizes come from the models' configs, tokens from the
characters of the questions. A run needs at least two operations for each weight of the blocks and
each token, and the head where a token is chosen. Hours are given only for a run that has begun, at
the speed of the shards that it has read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention, window_of
from anchorscope.engine.passes import (
    ANSWER_ONLY,
    CAUGHT,
    NEUTRAL,
    QUESTION,
    RETEST,
    RETEST_KNOCKOUT,
    RETESTED,
    passes_of,
)
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import passes_of_pieces
from anchorscope.models.load import unreadable
from anchorscope.models.locate import config_source
from anchorscope.models.parts import find_parts
from anchorscope.pipeline.request import question_sets, resolve
from anchorscope.pipeline.study.file import Study, StudyModel
from anchorscope.records import QuestionSet
from anchorscope.run_folder.disk import disk_bytes, nearest_existing
from anchorscope.run_folder.manifest import read_info

GB = 1e9
Result = TypeVar("Result")
CHARACTERS = 4.2  # of English questions to a token
ANSWER = 3.3  # tokens of a short answer, on average over five question sets
# Tokens of a pass: a share of question + answer, and tokens beside the answer.
_LENGTHS = {
    NEUTRAL.name: (0.81, 0), QUESTION.name: (0, 3), ANSWER_ONLY.name: (0, 1), RETEST.name: (0, 1),
    RETEST_KNOCKOUT.name: (1.65, 0),  # and the question itself, behind the other prompt
}  # fmt: skip
_LENGTH = (0.65, 0)  # of all others: they begin in the middle of the question
COLUMNS = ("model", "questions", "passes", "tokens", "FLOPs", "weights", "disk", "hours")


class Size(NamedTuple):
    """The size of a model, as far as the cost of a run depends on it."""

    blocks: int
    width: int
    block_weights: int  # of all blocks: each token goes through them
    head_weights: int  # only where a token is chosen
    weights: int  # all of them, tied ones once


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run needs, whatever machine it runs on."""

    questions: int
    passes: int  # rows that go through the model beside the answers
    tokens: float  # as run.json counts them
    flops: float
    weights: float  # bytes
    disk: float  # bytes of the run folder


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One model of a study, the config of its run, and what that run costs."""

    model: StudyModel
    config: Config
    sets: Sequence[QuestionSet]
    cost: Cost
    hours: float | None  # of reading that is left, at measured speed; None: nothing is measured
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every run of a study, and everything that is wrong with the study."""

    runs: Sequence[PlannedRun]
    problems: Sequence[str]

    def require_sound(self) -> None:
        """Raise a UserError with the whole list where anything is wrong."""
        if self.problems:
            lines = "\n".join(f"- {problem}" for problem in self.problems)
            count = len(self.problems)
            raise UserError(f"The study was not started. To fix ({count}):\n{lines}")


def plan_study(
    study: Study,
    out: Path,
    *,
    max_hours: float | None = None,
    drop_states: bool = False,
    check_machine: bool = True,
) -> Plan:
    """The plan of a study in folder `out`; nothing slow is started and no folder is made.

    `check_machine`: whether the disk and memory of this machine must hold it.
    """
    problems: list[str] = []
    sets = _question_sets(study, problems)
    planned = [_plan_run(study, model, sets, out, problems) for model in study.models]
    runs = [run for run in planned if run is not None]
    if check_machine:
        problems += _lacking(runs, out, drop_states=drop_states)
    hours = sum(run.hours or 0 for run in runs)
    if max_hours is not None and hours > max_hours:
        problems.append(
            f"What has begun needs about {hours:.1f} hours more, and --max-hours is "
            f"{max_hours:g}. Ask fewer questions (--limit), or give it more workers."
        )
    return Plan(runs=runs, problems=problems)


def _try(make: Callable[[], Result], name: str, problems: list[str]) -> Result | None:
    """What `make` returns; None where it raises a UserError, which goes to the problems."""
    try:
        return make()
    except UserError as error:
        problems.append(f"{name}: {error}")
        return None


def _question_sets(study: Study, problems: list[str]) -> list[QuestionSet]:
    """Every question set, loaded once for all models."""
    first = _try(lambda: study.config(study.models[0]), study.models[0].name, []) or Config()
    sets: list[QuestionSet] = []
    for name in study.data:
        one = replace(first, data=(name,))
        sets += _try(lambda one=one: question_sets(None, one), name, problems) or []
    names = [questions.name for questions in sets]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"Two question sets are named '{name}'. Rename a file.")
    return sets


def _plan_run(
    study: Study, model: StudyModel, sets: Sequence[QuestionSet], out: Path, problems: list[str]
) -> PlannedRun | None:
    """One run of the plan; None where its options or its model's config cannot be read."""
    config = _try(lambda: study.config(model), model.name, problems)
    size = config and _try(lambda: model_size(config), model.name, problems)
    if config is None or size is None:
        return None
    if config.verdicts and len(sets) == len(study.data):
        _try(lambda: resolve(None, list(sets), config), model.name, problems)
    folder = out / model.name
    info = _try(lambda: read_info(folder), model.name, problems) if folder.is_dir() else None
    finished = bool(info and info.get("finished"))
    return PlannedRun(
        model=model,
        config=config,
        sets=sets,
        cost=estimate(config, sets, size),
        hours=None if finished or info is None else _hours_left(folder, info, sets),
        finished=finished,
    )


def _hours_left(folder: Path, info: dict[str, Any], sets: Sequence[QuestionSet]) -> float | None:
    """Hours of reading that are left of a run that has begun; None before its first shard."""
    spent = info.get("stages", {}).get("answers and states", {}).get("seconds")
    read = len(list((folder / "answers").glob("*.parquet")))
    if not spent or not read or "shard" not in info:
        return None
    shards = sum(-(-len(questions) // info["shard"]) for questions in sets)
    return max(0, shards - read) * spent / read / 3600


def _lacking(runs: Sequence[PlannedRun], out: Path, *, drop_states: bool) -> list[str]:
    """What this machine has not enough of, each in a sentence."""
    problems: list[str] = []
    left = [run for run in runs if not run.finished]
    needed = [run.cost.disk for run in left]
    disk = max(needed, default=0.0) if drop_states else sum(needed)
    place = nearest_existing(out)
    free = shutil.disk_usage(place).free
    if disk > free:
        problems.append(
            f"{place} has {free / GB:.1f} GB free, and the run folders need about "
            f"{disk / GB:.1f} GB. Choose another --out, ask fewer questions (--limit), or give "
            "--drop-states."
        )
    if not os.access(place, os.W_OK):
        problems.append(f"{place} cannot be written. Choose another --out.")
    memory = float(psutil.virtual_memory().total)
    if torch.cuda.is_available():
        memory = float(torch.cuda.get_device_properties(0).total_memory)
    for run in left:
        if run.cost.weights > memory and run.config.device != "balanced":
            problems.append(
                f"{run.model.name}: its weights take {run.cost.weights / GB:.1f} GB, and one "
                f'device has {memory / GB:.0f} GB. Add device = "balanced", or leave it out.'
            )
    return problems


def model_size(config: Config) -> Size:
    """The size of the model that a run is asked for, from its config on disk or on the hub."""
    trusted = config.trust_remote_code
    try:
        place, options = config_source(config.model)
        shape = AutoConfig.from_pretrained(
            place, revision=config.revision, trust_remote_code=trusted, **options
        )
        return size_from(shape, trust_remote_code=trusted)
    except UserError:
        raise
    except Exception as error:  # a config that makes no sense ends in any error
        raise unreadable(config.model, error, trusted=trusted) from error


def size_from(config: Any, *, trust_remote_code: bool = False) -> Size:
    """The size of a model with this config of transformers; its weights are never made."""
    with torch.device("meta"):
        # Explicit: transformers otherwise asks at the terminal whether to run the model's code.
        lm = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        lm.tie_weights()  # early releases of transformers 5 do not, where there are no weights yet
    parts = find_parts(lm)

    def count(module: Any) -> int:
        return sum(weight.numel() for weight in module.parameters())

    blocks = sum(count(block) for block in parts.blocks)
    return Size(len(parts.blocks), parts.width, blocks, count(parts.head), count(lm))


def estimate(config: Config, sets: Sequence[QuestionSet], size: Size) -> Cost:
    """The tokens, FLOPs and bytes of one run of a model of this size on these questions."""
    answer = min(config.max_tokens, ANSWER)
    interventions = (*passes_of(config), *passes_of_pieces(config))
    rows = [row for cut in interventions if not cut.retest for row in _rows(cut)]
    retest_rows = [row for cut in interventions if cut.retest for row in _rows(cut)]

    def tokens_of(rows: Sequence[tuple[float, float]], question: float) -> float:
        return sum(s * (question + answer) + (0 if s else answer + more) for s, more in rows)

    tokens, retested = 0.0, 0
    for questions in sets:
        count, again = len(questions), min(RETESTED, len(questions))
        question = sum(len(f"Q: {q.text}\nA:") for q in questions) / CHARACTERS / max(1, count)
        shots = questions.shots[: config.shots]
        tokens += sum(len(f"Q: {s.question}\nA: {s.answer}\n\n") for s in shots) / CHARACTERS
        tokens += count * (question + answer + tokens_of(rows, question))
        tokens += again * tokens_of(retest_rows, question)
        retested += again
    count = sum(map(len, sets))
    # Attention mass, for the neutral control, takes the answer once more and is no pass of its own.
    flops = 2 * size.block_weights * (tokens + count * (answer + 1))
    flops += 2 * size.head_weights * count * (answer + 1)
    return Cost(
        questions=count,
        passes=count * len(rows) + retested * len(retest_rows),
        tokens=tokens,
        flops=flops,
        weights=size.weights * (4 if config.dtype == "float32" else 2),
        disk=disk_bytes(count, size.blocks, size.width, len(CAUGHT) + len(interventions)),
    )


def _rows(cut: Intervention) -> list[tuple[float, float]]:
    """The rows of a pass: each a share of question + answer, and tokens beside the answer."""
    return [_LENGTHS.get(cut.name, _LENGTH)] * ((window_of(cut.layers) or 0) + 1)


# --- The plan in rows and sentences ---


def plan_rows(plan: Plan) -> list[list[str]]:
    """A row of COLUMNS for each model, and the sum of what is to do where there are several."""
    rows = [
        [run.model.name, *(["finished", *[""] * 6] if run.finished else _cells([run]))]
        for run in plan.runs
    ]
    left = [run for run in plan.runs if not run.finished]
    return [*rows, ["all to do", *_cells(left)]] if len(rows) > 1 else rows


def _cells(runs: Sequence[PlannedRun]) -> list[str]:
    """The sums of runs as COLUMNS has them; no hours where any of them is not known."""
    costs = [run.cost for run in runs]
    hours = [run.hours for run in runs if run.hours is not None]
    return [
        f"{sum(cost.questions for cost in costs):,}",
        f"{sum(cost.passes for cost in costs):,}",
        _short(sum(cost.tokens for cost in costs)),
        _short(sum(cost.flops for cost in costs)),
        f"{_short(sum(cost.weights for cost in costs))}B",
        f"{_short(sum(cost.disk for cost in costs))}B",
        f"{sum(hours):.2f}" if hours and len(hours) == len(runs) else "",
    ]


def plan_notes(plan: Plan) -> list[str]:
    """What the plan rests on, each in a sentence."""
    notes = []
    for run in plan.runs:  # a model's name in the study need not say what is loaded
        chosen = {"revision": run.config.revision, "adapter": run.config.adapter}
        more = "".join(f", {name} {value}" for name, value in chosen.items() if value)
        notes.append(f"{run.model.name} is {run.config.model}{more}.")
    notes.append(
        f"Tokens are estimated: {CHARACTERS} characters each, {ANSWER} to an answer. Passes of "
        "saliency, single heads and P(True) are not counted."
    )
    notes.append(
        "Hours: of reading that is left, at the speed that the run has had so far. A run that has "
        "read no shard has none: start it, and ask again."
    )
    return notes


def _short(value: float) -> str:
    """A count with its power of a thousand: 12.3M."""
    for unit, name in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
