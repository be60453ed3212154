"""What can be known of a run before its model is loaded, said then.

Whether there are enough right and wrong answers is known at the end alone. But 30 questions cannot
give 20 of each, questions about two things fill no five folds, and a full disk is full already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorscope.answers.verdicts import read_verdicts
from anchorscope.config import Config
from anchorscope.engine.passes import CAUGHT, passes_of
from anchorscope.errors import UserError, user_path
from anchorscope.evidence.pieces import passes_of_pieces
from anchorscope.models.locate import read_shape
from anchorscope.probes.folds import MIN_OVERALL, entity_folds
from anchorscope.records import QuestionSet, Verdict
from anchorscope.run_folder.disk import check_room, check_writable, disk_bytes
from anchorscope.run_folder.remote import remote_of
from anchorscope.spans.question import entity_of, find_spans

_FROM_TEXT = ("auto", "given", "rules", "all")  # the finders that need no model and no parser


def check_run(config: Config, sets: Sequence[QuestionSet], out: str | Path, model: Any) -> None:
    """Raise a UserError where a run must fail whatever the model answers, or has no room."""
    verdicts = read_verdicts(config.verdicts)
    for questions in sets:
        check_enough_questions(questions, verdicts)
        if config.finder in _FROM_TEXT:
            _check_entities(questions, config)
    passes = len(CAUGHT) + len((*passes_of(config), *passes_of_pieces(config)))
    check_place(config, sets, out, model, passes=passes)


def check_place(
    config: Config, sets: Sequence[QuestionSet], out: str | Path, model: Any, *, passes: int
) -> None:
    """Raise a UserError where the folder cannot be written to, or will not fit on its disk."""
    if remote_of(out) is not None:
        return
    folder = user_path(out)
    check_writable(folder)
    shape = read_shape(config.model) if model is None or isinstance(model, str | Path) else None
    if shape is not None:
        check_room(folder, disk_bytes(sum(map(len, sets)), *shape, passes))


def check_enough_questions(questions: QuestionSet, verdicts: Mapping[str, Verdict]) -> None:
    """Raise a UserError where a set cannot give enough right and wrong answers."""
    given = [verdicts.get(question.id) for question in questions]
    open_ = given.count(None)  # the judge will decide: right or wrong
    right, wrong = given.count("right"), given.count("wrong")
    if min(right, wrong) + open_ < MIN_OVERALL or right + wrong + open_ < 2 * MIN_OVERALL:
        told = f", of which {right} are given as right and {wrong} as wrong" if verdicts else ""
        raise UserError(
            f"{questions.name} has {len(given)} questions{told}; probes need at least "
            f"{MIN_OVERALL} right and {MIN_OVERALL} wrong answers. Ask more questions: a larger "
            "--limit, or a larger file."
        )


def _check_entities(questions: QuestionSet, config: Config) -> None:
    """Raise a UserError where the questions are about fewer things than there are folds."""
    entities: set[str] = set()
    for question in questions:
        entities.add(entity_of(question, find_spans([question], finder=config.finder)[0]))
        if len(entities) >= config.folds:
            return
    entity_folds(sorted(entities), folds=config.folds)  # says so
