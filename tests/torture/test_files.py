"""Hostile files of questions, options and studies: accepted and kept, or refused in a sentence."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.pipeline.study.file import study_of
from torture.hostile import fuzz, part, seeded, text, value

FOLDER = Path(tempfile.mkdtemp(prefix="torture-files-"))
COLUMNS = (
    "question", "answers", "answer", "id", "subject", "subjects", "relation", "popularity",
    "entity", "split", "ambiguous", "possible_answers", "subj", "prop", "s_pop", "Question",
    "QuestionId", "Answer", "question_id", "question_source", "type", "supporting_facts", "_id",
    "canonical", "problem",
)  # fmt: skip
STEMS = ("mine", "popQA", "triviaqa-dev", "hotpot_dev_distractor_v1", "NQ-open.dev", "a:b", "..")
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz")
DEFAULTS = {f.name: f.default for f in fields(Config)}
Rows = list[dict[str, Any]]


def _mostly(r: Random, plain: Any) -> Any:
    return plain if r.random() < 0.9 else value(r)


def _row(r: Random) -> dict[str, Any]:
    if r.random() < 0.2:
        return {r.choice((*COLUMNS, part(r))): value(r) for _ in range(r.randint(0, 6))}
    row = {"question": _mostly(r, text(r)), "answers": _mostly(r, [part(r), text(r)])}
    for name in ("id", "subject", "popularity", "split", "entity", "ambiguous", "relation"):
        if r.random() < 0.15:
            row[name] = _mostly(r, r.choice((part(r), 1, "dev")))
    return row


def _as_bytes(rows: Rows, ending: str) -> bytes:
    """The rows in a format, lists as JSON where it has none."""
    if ending == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if ending == ".jsonl.gz":
        return gzip.compress(_as_bytes(rows, ".jsonl"), compresslevel=1)
    if ending == ".json":
        return json.dumps(rows, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if ending == ".parquet":
        out = io.BytesIO()
        try:
            pq.write_table(pa.Table.from_pylist(rows), out)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return b"PAR1" + json.dumps(rows).encode() + b"PAR1"  # no table: damage then
        return out.getvalue()
    table = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(table, names, delimiter="\t" if ending == ".tsv" else ",")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
    return table.getvalue().encode("utf-8", "surrogatepass")


def _file(r: Random) -> tuple[bytes, str]:
    """A file of questions, some bytes of which are changed, and its name."""
    ending = r.choice(ENDINGS)
    data = bytearray(_as_bytes([_row(r) for _ in range(r.choice((0, 1, 1, 2, 5)))], ending))
    for _ in range(r.choice((0, 0, 1, 3)) if data else 0):
        data[r.randrange(len(data))] = r.randint(0, 255)
    return bytes(data), r.choice(STEMS) + ending


def _check_file(given: tuple[bytes, str]) -> None:
    file = FOLDER / given[1]
    file.write_bytes(given[0])
    found = load_questions(file)
    ids = [question.id for question in found]
    assert len(set(ids)) == len(ids) > 0
    for question in found:
        assert question.text == " ".join(question.text.split()) and question.answers
        assert all(subject in question.text for subject in question.subjects)
        question.text.encode()
    assert load_questions(file, seed=1, limit=len(ids)).questions


def _options(r: Random) -> dict[str, Any]:
    names = [r.choice(list(DEFAULTS)) for _ in range(r.randint(1, 3))]
    return {name: value(r) if r.random() < 0.6 else DEFAULTS[name] for name in names}


def _check_config(options: dict[str, Any]) -> None:
    """JSON brings a config back alike, and its identity is JSON."""
    config = Config.restore(options)
    assert Config.restore(json.loads(json.dumps(asdict(config)))) == config
    json.dumps(config.identity())


def _study(r: Random) -> dict[str, Any]:
    models = [
        _mostly(r, {"model": _mostly(r, part(r) or "m"), "name": _mostly(r, part(r)),
                    "panel": _mostly(r, "p"), **_options(r)})
        for _ in range(r.randint(0, 3))
    ]  # fmt: skip
    return {"title": _mostly(r, text(r)), "data": _mostly(r, ["atlas", _mostly(r, "a")]),
            "models": _mostly(r, models), "options": _mostly(r, _options(r))}  # fmt: skip


def _check_study(content: dict[str, Any]) -> None:
    """Each model of a study has a folder of its own, inside the study's."""
    study = study_of(content, "study.toml")
    for model in study.models:
        assert "/" not in model.name and "\x00" not in model.name
        assert model.name not in ("", ".", "..", "figures")
        study.config(model)


test_files_of_questions = fuzz(seeded(_file), _check_file)
test_options = fuzz(seeded(_options), _check_config)
test_studies = fuzz(seeded(_study), _check_study)
