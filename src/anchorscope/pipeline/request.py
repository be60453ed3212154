"""Define a run, and check its options, questions and disk space before anything slow starts.

Whether there are enough right and wrong answers is known at the end only. But 30 questions cannot
give 20 of each, questions about two entities cannot fill five folds, and a full disk shows at once.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from anchorscope.answers.given import answers_hash, read_answers_file, with_answers
from anchorscope.answers.verdicts import count_verdicts, read_verdicts, verdicts_hash
from anchorscope.config import Config
from anchorscope.datasets import load_questions, remarks
from anchorscope.engine import HALVED
from anchorscope.errors import UserError, user_path
from anchorscope.models.locate import config_source
from anchorscope.probes.folds import MIN_OVERALL, entity_folds
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Question, QuestionSet
from anchorscope.run_folder.disk import check_room, check_writable, disk_bytes
from anchorscope.run_folder.identity import questions_hash
from anchorscope.run_folder.manifest import MARKERS, check_files
from anchorscope.run_folder.remote import remote_of
from anchorscope.run_folder.store import Store
from anchorscope.spans.question import entity_of, find_spans, load_pipeline

_FROM_TEXT = ("auto", "given", "rules", "all")  # the finders that need no model and no parser
Questions = str | Path | QuestionSet | Sequence[Question] | Sequence[QuestionSet]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in progress: its folder, config, question sets and progress listener."""

    store: Store
    config: Config
    sets: Sequence[QuestionSet] = ()
    remaining: Sequence[QuestionSet] = ()  # beyond those that probes learn from
    progress: Progress = field(default_factory=Quiet)

    @classmethod
    def open(
        cls,
        out: str | Path,
        identity: dict[str, Any],
        config: Config,
        sets: Sequence[QuestionSet] = (),
        progress: Progress | None = None,
        *,
        remaining: Sequence[QuestionSet] = (),
        model: Any = None,
        passes: int = 0,
    ) -> Run:
        """Open or begin the run of this identity in folder `out`; refuse another run's folder.

        With `passes`, a disk that cannot hold the states of so many passes is refused as well.
        """
        room = check_place(config, sets, remaining, out, model, passes) if passes else ""
        store, progress = Store.open(out, identity), progress or Quiet()
        for note in (*chain.from_iterable(map(remarks, sets)), *([room] if room else [])):
            progress.note(note)
        return cls(store=store, config=config, sets=sets, remaining=remaining, progress=progress)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the run without what stays in this process: listener and remaining questions."""
        return self.__dict__ | {"progress": Quiet(), "remaining": ()}

    @property
    def model_name(self) -> str:
        return str(self.store.info["model"]["name"])

    def whole(self) -> bool:
        """Whether every file of a finished run is unchanged; each damaged one is reported.

        Damaged markers alone are rewritten at once, from the files.
        """
        damaged = {name: wrong for name, wrong in check_files(self.store.path) if wrong}
        for name, wrong in damaged.items():
            self.progress.note(f"{name} is made again: {wrong}")
        if damaged and all(MARKERS in name.split("/") for name in damaged):
            self.store.relist()
            return True
        return not damaged

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, float]]:
        """Record the seconds and tokens of a stage in run.json, also where it fails.

        Batches that ran out of memory are recorded too, since smaller ones round differently.
        """
        begun, spent, before = time.monotonic(), {"tokens": 0.0}, len(HALVED)
        try:
            yield spent
        finally:
            stages = self.store.info.get("stages", {})
            stage = {"seconds": 0.0, "tokens": 0} | stages.get(name, {})
            stage["seconds"] = round(stage["seconds"] + time.monotonic() - begun, 2)
            stage["tokens"] = int(stage["tokens"] + spent["tokens"])
            if halved := HALVED[before:]:
                stage["halved"] = [*stage.get("halved", []), *halved]
                self.progress.note(
                    f"memory ran out {len(halved)} times; batches of {min(halved)} tokens and more "
                    "were made smaller, which run.json notes"
                )
            self.store.save_info({"stages": stages | {name: stage}})


def resolve(
    model: Any, questions: Any, config: Config
) -> tuple[Config, list[QuestionSet], dict[str, Any]]:
    """Resolve the options of a run: its config, its question sets and its identity.

    `model` and `questions`, where they are not None, replace those that the config names.
    """
    sets = question_sets(questions, config)
    if isinstance(model, str | Path):
        config = replace(config, model=str(model))
    elif source := getattr(model, "source", None):  # a model that `load_model` gave
        config = replace(config, model=source, adapter=config.adapter or model.adapter)
    elif model is not None:
        config = replace(config, model=str(model.config.name_or_path))
    names = [each.name for each in sets]
    if questions is not None:
        config = replace(config, data=tuple(names))
    if config.finder == "spacy":
        load_pipeline()  # an error here, where it is missing
    given = read_answers_file(config.answers)
    sets = with_answers(sets, given, str(config.answers))
    verdicts = read_verdicts(config.verdicts)
    if verdicts:
        count_verdicts(verdicts, (q.id for each in sets for q in each), str(config.verdicts))
    # Questions, answers and verdicts count by content: a file under another path is the same.
    identity = config.identity() | {
        "data": names,
        "questions": questions_hash(sets),
        "columns": None,
        "answers": answers_hash(given),
        "verdicts": verdicts_hash(verdicts),
    }
    return config, sets, identity


def question_sets(questions: Any, config: Config) -> list[QuestionSet]:
    """Load the question sets of a run; a UserError where two have the same name."""
    fields = ("limit", "seed", "columns", "skip_bad_rows")
    load = partial(load_questions, **{name: getattr(config, name) for name in fields})
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


def command_of(config: Config, out: Path, *, verb: str = "run") -> str:
    """The command line that repeats this run, without its rank and world size."""
    names = [name for name in asdict(config) if name not in ("rank", "world_size")]
    words = ["anchorscope", *verb.split(), *option_words(config, names)]
    return shlex.join([*words, "--out", str(out)])


def option_words(config: Config, names: Iterable[str]) -> list[str]:
    """Convert config fields to command-line options; fields at their default are left out."""
    words, usual = [], Config()
    for name in names:
        value = getattr(config, name)
        if value == getattr(usual, name):
            continue
        words.append(f"--{name}" if name == "C" else f"--{name.replace('_', '-')}")
        if isinstance(value, tuple):
            words.append(",".join(value) or "none")
        elif value is not True:
            words.append("all" if value is None else str(value))
    return words


def check_questions(config: Config, sets: Sequence[QuestionSet]) -> None:
    """Raise a UserError where a run has too few questions or entities for its probes and folds."""
    verdicts = read_verdicts(config.verdicts)
    for questions in sets:
        given = [verdicts.get(question.id) for question in questions]
        undecided = given.count(None)  # the judge will decide: right or wrong
        right, wrong = given.count("right"), given.count("wrong")
        most = right + wrong + undecided
        if min(right, wrong) + undecided < MIN_OVERALL or most < 2 * MIN_OVERALL:
            note = f", of which {right} are given as right and {wrong} as wrong" if verdicts else ""
            raise UserError(
                f"{questions.name} has {len(given)} questions{note}; probes need at least "
                f"{MIN_OVERALL} right and {MIN_OVERALL} wrong answers. Ask more questions: a "
                "larger --limit or --learn-from, or a larger file."
            )
        entities: set[str] = set()
        for question in questions if config.finder in _FROM_TEXT else ():
            entities.add(entity_of(question, find_spans([question], finder=config.finder)[0]))
            if len(entities) >= config.folds:
                break
        else:
            if entities:
                entity_folds(sorted(entities), folds=config.folds)  # raises the error


def check_place(
    config: Config,
    sets: Sequence[QuestionSet],
    remaining: Sequence[QuestionSet],
    out: str | Path,
    model: Any,
    passes: int,
) -> str:
    """Raise a UserError where a run folder cannot be written to, or will not fit on its disk.

    Returns a sentence about the space it takes; "" where that is unknown, or under a URL.
    """
    from anchorscope.models.load import Model, read_shape

    if remote_of(out) is not None:
        return ""
    folder, shape = user_path(out), None
    check_writable(folder)
    if isinstance(model, Model):
        shape = model.blocks, model.parts.width
    elif model is None or isinstance(model, str | Path):
        with suppress(UserError):  # loading the model says what is wrong with it
            place, options = config_source(config.model)
            if not options and Path(place).is_dir():
                shape = read_shape(config.model)
    if shape is None:
        return ""
    learnt, further = (sum(map(len, part)) for part in (sets, remaining))
    every = config.keep_states == "all"
    return check_room(folder, disk_bytes(learnt, further, *shape, passes, all_states=every))
