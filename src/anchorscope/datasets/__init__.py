"""Load questions from built-in sets, published datasets, the hub, files and lists."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from anchorscope.datasets.atlas import ATLAS
from anchorscope.datasets.atlas_compare import ATLAS_COMPARE
from anchorscope.datasets.columns import Columns, read_columns
from anchorscope.datasets.published import PUBLISHED
from anchorscope.datasets.rows import READERS, SCHEME, from_address, from_file, from_hub
from anchorscope.datasets.source import Draft, Source
from anchorscope.datasets.text import digest, normalised
from anchorscope.errors import UserError, beside, unknown
from anchorscope.records import Question, QuestionSet

__all__ = ["DATASETS", "load_questions", "remarks"]

DATASETS: dict[str, Source] = {source.name: source for source in (ATLAS, ATLAS_COMPARE, *PUBLISHED)}
LONG, FAR_LONGER = 500, 10  # remark on longer questions: characters, times the median


def load_questions(
    data: str | os.PathLike[str] | Sequence[Question],
    *,
    limit: int | None = None,
    seed: int = 0,
    columns: str | None = None,
    skip_bad_rows: bool = False,
) -> QuestionSet:
    """Load questions by name, from the hub, a file or a list, without duplicates.

    Args:
        data: A name (`anchorscope datasets` lists them), `hub:ORG/NAME`, a .jsonl, .json, .csv,
            .tsv or .parquet file, or a list of `Question`.
        limit: The number of questions; None for all. A larger limit extends a smaller one with the
            same seed; the file's order plays no part.
        seed: Decides which questions a limit takes.
        columns: What the columns of a file or of a dataset of the hub are called:
            "question=problem,answers=gold". A set that has a name here needs none.
        skip_bad_rows: Leave out rows of a file that cannot be used, instead of an error that names
            them all.

    Returns:
        The questions, their worked examples, and the count of rows left out by reason.

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
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise UserError(
            f"limit must be a whole number of questions, at least 1, not {limit!r}. "
            "Leave it out to take them all."
        )
    source, drafts = _drafts(data, read_columns(columns), skip_bad_rows)
    questions, dropped = _without_duplicates([one for one in drafts if one is not None])
    if bad := drafts.count(None):
        dropped = {"bad row": bad} | dropped
    if not questions:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise UserError(f"No question of {source.title} is left ({counts}). Give other questions.")
    return QuestionSet(
        name=source.name,
        title=source.title,
        # By a hash of seed and id: a larger limit extends a smaller one, the order of the file does
        # not matter, and new rows do not change which old ones are drawn.
        questions=tuple(sorted(questions, key=lambda q: (digest(seed, q.id), q.id))[:limit]),
        shots=source.shots,
        retest_shots=source.retest_shots,
        dropped=dropped,
    )


def remarks(questions: QuestionSet) -> list[str]:
    """Report the rows that were left out, and questions far longer than the others."""
    out = []
    if questions.dropped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in questions.dropped.items())
        out.append(f"{questions.name}: {len(questions):,} questions; left out: {reasons}")
    usual = median(len(question.text) for question in questions)
    for question in questions:
        length = len(question.text)
        if length > max(LONG, FAR_LONGER * usual):
            out.append(
                f"{questions.name}: a question has {length:,} characters, and half of the others "
                f"have {usual:,.0f} or fewer: {question.text[:40]!r}... ({question.id})"
            )
    return out


def _drafts(
    data: str | os.PathLike[str] | Sequence[Question], columns: Columns | None, skip_bad_rows: bool
) -> tuple[Source, Sequence[Draft | None]]:
    if isinstance(data, str) and data.startswith(SCHEME):
        return from_address(data, columns, skip_bad_rows=skip_bad_rows)
    if isinstance(data, str | os.PathLike):
        source = DATASETS.get(os.fspath(data))
        if source is None:
            path = Path(data)
            if os.path.isdir(path):
                raise UserError(f"{path} is a folder. Give one file: {', '.join(READERS)}.")
            if not os.path.exists(path):  # False, not an error, for a text that cannot be a path
                raise unknown(
                    "dataset or file",
                    path,
                    DATASETS,
                    f"Or hub:ORG/NAME, or an existing file: {', '.join(READERS)}.",
                    similar=[*DATASETS, *beside(path)],
                )
            return from_file(path, DATASETS.values(), columns, skip_bad_rows=skip_bad_rows)
        if source.make is not None:
            return source, [Draft(question) for question in source.make()]
        assert source.hub is not None
        return source, from_hub(source, source.hub)
    if isinstance(data, Sequence):
        return _from_list(data)
    raise UserError(
        f"Questions cannot come from a {type(data).__name__}. "
        "Accepted: a built-in name, a file, a list of Question."
    )


def _from_list(items: Sequence[object]) -> tuple[Source, list[Draft]]:
    """Check a list of `Question` and find the dataset that they belong to."""
    questions = [item for item in items if isinstance(item, Question)]
    if len(questions) < len(items) or not items:
        kinds = ", ".join(sorted({type(item).__name__ for item in items})) or "nothing"
        raise UserError(
            f"The list holds {kinds}. It needs at least one Question, and nothing else."
        )
    for number, one in enumerate(questions, 1):
        if not one.id or not one.dataset or not one.text.strip() or not one.answers:
            raise UserError(
                f"Question {number} of the list needs an id, a dataset, a text and answers."
            )
        if not all(subject and subject in one.text for subject in one.subjects):
            given = ", ".join(map(repr, one.subjects))
            raise UserError(
                f"Question {number} of the list has the subjects {given}. Each has to be an exact "
                "part of its text."
            )
    names = sorted({question.dataset for question in questions})
    if len(names) > 1:
        raise UserError(
            f"The list has questions of {len(names)} datasets: {', '.join(names)}. "
            "Load each dataset by itself."
        )
    id, count = Counter(question.id for question in questions).most_common(1)[0]
    if count > 1:
        raise UserError(f"{count} questions of the list have the same id '{id}'.")
    source = DATASETS.get(names[0]) or Source(name=names[0], title=names[0])
    return source, [Draft(question) for question in questions]


def _without_duplicates(drafts: Iterable[Draft]) -> tuple[list[Question], dict[str, int]]:
    """Remove duplicate and ambiguous questions, and count them by reason.

    Of questions with the same text and answers one stays; of questions with the same text and
    other answers none does, and none that its dataset calls ambiguous.
    """
    same_text: dict[str, list[Draft]] = {}
    for draft in drafts:
        same_text.setdefault(normalised(draft.question.text), []).append(draft)
    kept: list[Question] = []
    dropped: Counter[str] = Counter()
    for group in same_text.values():
        answers = {frozenset(map(normalised, draft.question.answers)) for draft in group}
        if len(answers) > 1 or any(draft.ambiguous for draft in group):
            dropped["ambiguous"] += len(group)
            continue
        # By id; rows without one that differ in popularity alone share it.
        kept.append(min((draft.question for draft in group), key=lambda q: (q.id, repr(q))))
        dropped["duplicate"] += len(group) - 1
    return kept, {reason: count for reason, count in sorted(dropped.items()) if count}
