"""Write and read samples, the model's own outputs and rows of evidence as parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, cast

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import OUTPUT_ROWS

_SAMPLE = TypeAdapter(Sample)
_POSITIONS = ("prompt_ids", "question_tokens", "exact_question", "exact_answer")
_COUNTED = (*_POSITIONS, "content_tokens")


def to_frame(samples: Iterable[Sample]) -> pd.DataFrame:
    """Convert samples to a table, one row each, ready for parquet."""
    return pd.DataFrame([_row(sample) for sample in samples])


def from_frame(frame: pd.DataFrame) -> list[Sample]:
    """Parse samples from the rows of `to_frame`; a UserError names a row that is invalid."""
    samples = []
    for number, row in enumerate(frame.to_dict("records"), 1):
        try:
            sample = _SAMPLE.validate_python(_nested(row))
            ends = chain(*sample.spans, *sample.property_spans, sample.answer_span or ())
            counted = chain(
                ends, sample.answer.token_ids, *(getattr(sample, name) for name in _COUNTED)
            )
            if not all(0 <= number < 2**32 for number in counted):
                raise ValueError("a position or a token id is no such number")
            samples.append(sample)
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
        **{name: getattr(sample, name) for name in _POSITIONS},
        "kind": sample.kind,
        "property_starts": [span.start for span in sample.property_spans],
        "property_stops": [span.stop for span in sample.property_spans],
        "content_tokens": sample.content_tokens,
    }


def _nested(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of a sample from its row; empty cells are left out."""
    cells = {
        name: cell.tolist() if isinstance(cell, np.ndarray) else cell
        for name, cell in row.items()
        # An entropy may be unknown, a NaN.
        if isinstance(cell, np.ndarray | list | tuple) or name == "first_entropy" or pd.notna(cell)
    }
    question = {field.name: cells[field.name] for field in fields(Question) if field.name in cells}
    answer = {field.name: cells[field.name] for field in fields(Answer) if field.name in cells}
    found = "answer_start" in cells
    return cells | {
        "question": question | {"text": cells["question"]},
        "answer": answer | {"text": cells["answer"]},
        "spans": list(zip(cells["span_starts"], cells["span_stops"], strict=True)),
        "answer_span": (cells["answer_start"], cells["answer_stop"]) if found else None,
        "property_spans": list(
            zip(cells.get("property_starts", ()), cells.get("property_stops", ()), strict=True)
        ),
    }


def answers_name(number: int) -> str:
    """The file name of a shard's samples in the run folder."""
    return f"answers/{number:05d}.parquet"


def readings_name(number: int) -> str:
    """The file name of a shard's readings, in the folder `REMAINING` of the run folder."""
    return f"readings/{number:05d}.parquet"


def stored_answers(store: Store, number: int) -> list[Sample]:
    """Load the samples of one shard from disk."""
    return from_frame(pd.read_parquet(store.file(answers_name(number))))


def stored_samples(store: Store, shards: Iterable[int] | None = None) -> dict[str, list[Sample]]:
    """Load the samples of all shards or of some from disk, by dataset, in the shards' order."""
    samples: dict[str, list[Sample]] = {}
    for number in range(count_answers(store)) if shards is None else shards:
        shard = stored_answers(store, number)
        samples.setdefault(shard[0].question.dataset, []).extend(shard)
    return samples


def count_answers(store: Store) -> int:
    """The number of shards whose answers are on disk."""
    return len(list(store.file("answers").glob("*.parquet")))


def output_name(intervention: str, number: int) -> str:
    """The file name of a shard's outputs in the run folder."""
    return f"outputs/{intervention}/{number:05d}.parquet"


def load_outputs(
    store: Store, samples: Sequence[Sample], passes: Sequence[str], *, shards: int
) -> pd.DataFrame:
    """Log-probability and rank of each answer under each pass: a row per sample and pass.

    Those of the clean pass were recorded while answering; greedy tokens have rank 1. Passes without
    files, as in states that were extracted elsewhere, are left out.
    """
    ids, clean = [sample.id for sample in samples], []
    for sample in samples:
        if sample.exact_answer and sample.answer.log_probs:
            count = sample.exact_answer[-1] + 1 - len(sample.prompt_ids)
            log_probs = sample.answer.log_probs[:count]
            clean.append((sample.id, "clean", log_probs[0], float(np.mean(log_probs)), 1.0))
    frames = [pd.DataFrame(clean, columns=list(OUTPUT_ROWS))]
    for name in passes:
        files = [output_name(name, number) for number in range(shards)]
        for file in filter(store.has, files):
            rows = pd.read_parquet(store.file(file))
            frames.append(rows.loc[rows["id"].isin(ids)].assign(**{"pass": name}))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(OUTPUT_ROWS))


def evidence_name(piece: str, number: int) -> str:
    """The name of a shard's evidence table in the run folder."""
    return f"evidence/{piece}/{number:05d}.parquet"


def stored_rows(store: Store, piece: str, dataset: str, numbers: Iterable[int]) -> pd.DataFrame:
    """The rows of evidence/<piece> of one dataset in these shards, which must all be stored."""
    files = [store.file(evidence_name(piece, number)) for number in numbers]
    rows = pd.concat([pd.read_parquet(file) for file in files])
    return cast(pd.DataFrame, rows.loc[rows["dataset"] == dataset]).reset_index(drop=True)
