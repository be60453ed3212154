"""Samples and the model's own outputs as rows of parquet files, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import OUTPUT_ROWS

_SAMPLE = TypeAdapter(Sample)


def to_frame(samples: Iterable[Sample]) -> pd.DataFrame:
    """One row per sample, ready for parquet."""
    return pd.DataFrame([_row(sample) for sample in samples])


def from_frame(frame: pd.DataFrame) -> list[Sample]:
    """The samples that `to_frame` made the rows of; a UserError names a row that is none."""
    samples = []
    for number, row in enumerate(frame.to_dict("records"), 1):
        try:
            samples.append(_SAMPLE.validate_python(_nested(row)))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{' '.join(map(str, first['loc']))}: {first['msg']}"
            raise UserError(
                f"Row {number} of samples.parquet is no sample ({reason}). Get the folder "
                "again, or run its command into a new one."
            ) from error
    return samples


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


def _nested(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of a sample from its row; what an earlier version did not write is left out."""
    cells = {name: _plain(name, cell) for name, cell in row.items()}
    cells = {name: cell for name, cell in cells.items() if cell is not None}
    question = {field.name: cells[field.name] for field in fields(Question) if field.name in cells}
    answer = {field.name: cells[field.name] for field in fields(Answer) if field.name in cells}
    return cells | {
        "question": question | {"text": cells["question"]},
        "answer": answer | {"text": cells["answer"]},
        "spans": _spans(cells, "span"),
        "answer_span": (int(cells["answer_start"]), int(cells["answer_stop"]))
        if "answer_start" in cells
        else None,
        "property_spans": _spans(cells, "property"),
    }


def _plain(name: str, cell: Any) -> Any:
    """A cell as Python's own value, None where it is empty; an entropy may be unknown, a NaN."""
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    empty = isinstance(cell, float) and math.isnan(cell) and name != "first_entropy"
    return None if empty or cell is pd.NA else cell


def _spans(cells: Mapping[str, Any], kind: str) -> list[Span]:
    starts, stops = cells.get(f"{kind}_starts", ()), cells.get(f"{kind}_stops", ())
    return [Span(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]


def answers_name(number: int) -> str:
    """The name of a shard's samples in the run folder."""
    return f"answers/{number:05d}.parquet"


def stored_answers(store: Store, number: int) -> list[Sample]:
    """The samples of a shard that are on disk."""
    return from_frame(pd.read_parquet(store.file(answers_name(number))))


def stored_samples(store: Store) -> dict[str, list[Sample]]:
    """All samples on disk by dataset, in the order of their shards."""
    samples: dict[str, list[Sample]] = {}
    for number in range(count_answers(store)):
        shard = stored_answers(store, number)
        samples.setdefault(shard[0].question.dataset, []).extend(shard)
    return samples


def count_answers(store: Store) -> int:
    """The number of shards whose answers are on disk."""
    return len(list(store.file("answers").glob("*.parquet")))


def output_name(intervention: str, number: int) -> str:
    """The name of the file of a shard's outputs in the run folder."""
    return f"outputs/{intervention}/{number:05d}.parquet"


def load_outputs(
    store: Store, samples: Sequence[Sample], passes: Sequence[str], *, shards: int
) -> pd.DataFrame:
    """Log-probability and rank of each answer under each pass: a row per sample and pass.

    Those of the clean pass come from the samples. Passes without files, as in runs of earlier
    versions and in states that were extracted elsewhere, are left out.
    """
    ids = [sample.id for sample in samples]
    frames = [_clean_outputs(samples)]
    for name in passes:
        files = [output_name(name, number) for number in range(shards)]
        for file in filter(store.has, files):
            rows = pd.read_parquet(store.file(file))
            frames.append(rows.loc[rows["id"].isin(ids)].assign(**{"pass": name}))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(OUTPUT_ROWS))


def _clean_outputs(samples: Sequence[Sample]) -> pd.DataFrame:
    """The output of the clean pass, noted when the answers were written: greedy, so of rank 1."""
    rows = []
    for sample in samples:
        if sample.exact_answer and sample.answer.log_probs:
            count = sample.exact_answer[-1] + 1 - len(sample.prompt_ids)
            log_probs = sample.answer.log_probs[:count]
            rows.append((sample.id, "clean", log_probs[0], float(np.mean(log_probs)), 1.0))
    return pd.DataFrame(rows, columns=list(OUTPUT_ROWS))
