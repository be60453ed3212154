"""Questions: two built-in sets, eight of the field, any of the hub, files, and lists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anchorscope.datasets.atlas import ATLAS
from anchorscope.datasets.atlas_compare import ATLAS_COMPARE
from anchorscope.datasets.from_file import READERS, from_file
from anchorscope.datasets.from_hub import from_hub
from anchorscope.datasets.from_list import from_list
from anchorscope.datasets.hotpotqa import HOTPOTQA
from anchorscope.datasets.hub.address import SCHEME, from_address
from anchorscope.datasets.hub.columns import Columns, read_columns
from anchorscope.datasets.hub.ready import READY
from anchorscope.datasets.nq import NQ
from anchorscope.datasets.popqa import POPQA
from anchorscope.datasets.sampling import check_limit, sample, without_doubles
from anchorscope.datasets.source import Draft, Source
from anchorscope.datasets.triviaqa import TRIVIAQA
from anchorscope.errors import UserError, unknown
from anchorscope.records import Question, QuestionSet

__all__ = ["DATASETS", "load_questions"]

DATASETS: dict[str, Source] = {
    source.name: source for source in (ATLAS, ATLAS_COMPARE, POPQA, TRIVIAQA, HOTPOTQA, NQ, *READY)
}


def load_questions(
    data: str | os.PathLike[str] | Sequence[Question],
    *,
    limit: int | None = None,
    seed: int = 0,
    columns: str | None = None,
) -> QuestionSet:
    """The questions of a name, a `hub:` address, a file or a list: no duplicates, `limit` drawn.

    A larger limit extends a smaller one with the same seed; the file's order plays no part.
    `columns` ("question=problem,answers=gold") says what the columns of a file or of a dataset of
    the hub are called; a set that has a name here needs none.

    Examples:
        >>> import anchorscope as anc
        >>> questions = anc.load_questions("atlas", limit=2)
        >>> questions.name, [question.text for question in questions]
        ('atlas', ['What is the currency of Botswana?', 'What is the currency of Egypt?'])
        >>> rows = '{"problem": "Who wrote Emma?", "gold": ["Jane Austen"]}'
        >>> _ = Path("my.jsonl").write_text(rows)
        >>> mine = anc.load_questions("my.jsonl", columns="question=problem,answers=gold")
        >>> mine.questions[0].answers
        ('Jane Austen',)

    """
    check_limit(limit)
    source, drafts = _drafts(data, read_columns(columns))
    questions, dropped = without_doubles(drafts)
    if not questions:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise UserError(f"No question of {source.title} is left ({counts}). Give other questions.")
    return QuestionSet(
        name=source.name,
        title=source.title,
        questions=sample(questions, limit, seed),
        shots=source.shots,
        retest_shots=source.retest_shots,
        dropped=dropped,
    )


def _drafts(
    data: str | os.PathLike[str] | Sequence[Question], columns: Columns | None
) -> tuple[Source, list[Draft]]:
    if isinstance(data, str) and data.startswith(SCHEME):
        return from_address(data, columns)
    if isinstance(data, str | os.PathLike):
        source = DATASETS.get(os.fspath(data))
        return _from_file(Path(data), columns) if source is None else (source, _built_in(source))
    if isinstance(data, Sequence):
        return from_list(data, DATASETS)
    raise UserError(
        f"Questions cannot come from a {type(data).__name__}. "
        "Accepted: a built-in name, a file, a list of Question."
    )


def _built_in(source: Source) -> list[Draft]:
    if source.make is not None:
        return [Draft(question) for question in source.make()]
    assert source.hub is not None
    return from_hub(source, source.hub)


def _from_file(path: Path, columns: Columns | None) -> tuple[Source, list[Draft]]:
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder. Give one file: {', '.join(READERS)}.")
    if not os.path.exists(path):  # False, not an error, for a text that no path can be
        raise unknown(
            "dataset or file",
            path,
            DATASETS,
            f"Or hub:ORG/NAME, or an existing file: {', '.join(READERS)}.",
        )
    return from_file(path, DATASETS.values(), columns)
