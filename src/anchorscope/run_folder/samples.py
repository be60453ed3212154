"""Samples as rows of samples.parquet, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span


def to_frame(samples: Iterable[Sample]) -> pd.DataFrame:
    """One row per sample, ready for parquet."""
    return pd.DataFrame([_row(sample) for sample in samples])


def from_frame(frame: pd.DataFrame) -> list[Sample]:
    """The samples that `to_frame` made the rows of."""
    return [_read(number, row) for number, row in enumerate(frame.to_dict("records"), 1)]


def _read(number: int, row: dict[Any, Any]) -> Sample:
    """The sample of a row; an error where a stranger's file has a row that is none."""
    try:
        sample = _sample(row)
        asked = sample.question
        texts = (asked.id, asked.dataset, asked.text, *asked.answers, sample.answer.text)
        if not all(isinstance(text, str) for text in (*texts, sample.finder)):
            raise TypeError("a text is missing")
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"Row {number} of samples.parquet is no sample ({type(error).__name__}: {error}). Get "
            "the folder again, or run its command into a new one."
        ) from error
    return sample


def _row(sample: Sample) -> dict[str, Any]:
    question, answer = dict(vars(sample.question)), dict(vars(sample.answer))
    texts = {"question": question.pop("text"), "answer": answer.pop("text")}
    span = sample.answer_span
    return {
        **question,
        **texts,
        **answer,
        "verdict": sample.verdict,
        "finder": sample.finder,
        "span_starts": [span.start for span in sample.spans],
        "span_stops": [span.stop for span in sample.spans],
        "answer_start": span.start if span else None,
        "answer_stop": span.stop if span else None,
        "prompt_ids": list(sample.prompt_ids),
        "question_tokens": list(sample.question_tokens),
        "exact_question": list(sample.exact_question),
        "exact_answer": list(sample.exact_answer),
        "kind": sample.kind,
        "property_starts": [span.start for span in sample.property_spans],
        "property_stops": [span.stop for span in sample.property_spans],
        "content_tokens": list(sample.content_tokens),
    }


def _sample(row: dict[Any, Any]) -> Sample:
    return Sample(
        question=Question(
            id=row["id"],
            dataset=row["dataset"],
            text=row["question"],
            answers=tuple(row["answers"]),
            subjects=tuple(row["subjects"]),
            relation=_or_none(row["relation"]),
            popularity=_or_none(row["popularity"]),
            entity=row["entity"],
        ),
        answer=Answer(
            id=row["id"],
            text=row["answer"],
            token_ids=_ints(row["token_ids"]),
            log_probs=tuple(float(value) for value in row["log_probs"]),
            first_entropy=float(row["first_entropy"]),
            finished=bool(row["finished"]),
            entropies=_floats(row.get("entropies")),
        ),
        verdict=row["verdict"],
        finder=row["finder"],
        spans=tuple(map(Span, _ints(row["span_starts"]), _ints(row["span_stops"]))),
        answer_span=_span(row["answer_start"], row["answer_stop"]),
        prompt_ids=_ints(row["prompt_ids"]),
        question_tokens=_ints(row["question_tokens"]),
        exact_question=_ints(row["exact_question"]),
        exact_answer=_ints(row["exact_answer"]),
        kind=str(row.get("kind") or ""),
        property_spans=tuple(
            map(Span, _later(row, "property_starts"), _later(row, "property_stops"))
        ),
        content_tokens=_later(row, "content_tokens"),
    )


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _later(row: dict[Any, Any], name: str) -> tuple[int, ...]:
    """The positions of a cell; none where an earlier version wrote no such column."""
    return () if row.get(name) is None else _ints(row[name])


def _floats(values: Any) -> tuple[float, ...]:
    """The numbers of a cell; none where an earlier version wrote no such column."""
    return () if values is None else tuple(float(value) for value in values)


def _or_none(value: Any) -> Any:
    return None if pd.isna(value) else value


def _span(start: Any, stop: Any) -> Span | None:
    return None if pd.isna(start) else Span(int(start), int(stop))
