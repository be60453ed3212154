"""What a run is asked for: its question sets, their names, and the line that asks for it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from anchorscope.answers.verdicts import count_verdicts, read_verdicts, verdicts_hash
from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.records import Question, QuestionSet
from anchorscope.run_folder.identity import questions_hash
from anchorscope.spans.question import load_pipeline

_ONE_PART = ("rank", "world_size")  # the whole run is asked for without them
Questions = str | Path | QuestionSet | Sequence[Question]


def resolve(
    model: Any, questions: Any, config: Config
) -> tuple[Config, list[QuestionSet], dict[str, Any]]:
    """The config with what stands above it, the question sets, and what tells this run apart."""
    sets = question_sets(questions, config)
    config = replace(
        config,
        model=source_of(model, config),
        adapter=config.adapter or (model.adapter if isinstance(model, Model) else None),
        data=tuple(data_names(questions, config, sets)),
    )
    if config.finder == "spacy":
        load_pipeline()  # said before anything slow starts, where it is missing
    # What is asked is known by its content: the same file under another path is the same run.
    asked = {"data": [each.name for each in sets], "questions": questions_hash(sets)}
    verdicts = read_verdicts(config.verdicts)
    if verdicts:
        count_verdicts(verdicts, (q.id for each in sets for q in each), str(config.verdicts))
    content = {"columns": None, "verdicts": verdicts_hash(verdicts)}
    return config, sets, config.identity() | asked | content


def question_sets(questions: Any, config: Config) -> list[QuestionSet]:
    """The question sets of a run, no name twice."""
    load = partial(load_questions, limit=config.limit, seed=config.seed, columns=config.columns)
    if questions is None:
        sets = [load(name) for name in config.data]
    elif isinstance(questions, QuestionSet):
        sets = [questions]
    elif isinstance(questions, Sequence) and all(isinstance(q, QuestionSet) for q in questions):
        sets = list(questions)
    else:
        sets = [load(questions)]
    names = [each.name for each in sets]
    if len(set(names)) < len(names):
        raise UserError(
            f"Two question sets have the same name ({', '.join(names)}). Rename a file."
        )
    return sets


def source_of(model: Any, config: Config) -> str:
    if model is None:
        return config.model
    if isinstance(model, str | Path):
        return str(model)
    return model.source if isinstance(model, Model) else str(model.config.name_or_path)


def data_names(questions: Any, config: Config, sets: Sequence[QuestionSet]) -> Sequence[str]:
    return config.data if questions is None else [each.name for each in sets]


def described(questions: QuestionSet) -> dict[str, Any]:
    return {
        "name": questions.name,
        "title": questions.title,
        "questions": len(questions),
        "dropped": dict(questions.dropped),
    }


def command_of(config: Config, out: Path, *, verb: str = "run") -> str:
    """The command line that asks for this run."""
    words = ["anchorscope", *verb.split()]
    for name, value in asdict(config).items():
        if value == getattr(Config(), name) or name in _ONE_PART:
            continue
        option = name if name == "C" else name.replace("_", "-")
        words += [f"--{option}"] if value is True else [f"--{option}", _written(value)]
    return shlex.join([*words, "--out", str(out)])


def _written(value: Any) -> str:
    """A config value as the command line takes it."""
    if value is None:
        return "all"
    return (",".join(value) or "none") if isinstance(value, tuple) else str(value)
