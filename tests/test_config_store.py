"""The config declares itself, and the run folder keeps its promises."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.run_folder.store import Store

ONE = {"model": "bundled", "limit": 8}


def test_every_field_says_whether_it_changes_results():
    for field in fields(Config):
        assert isinstance(field.metadata.get("changes"), bool), field.name
        assert field.metadata.get("help"), field.name


def test_identity_holds_exactly_the_fields_that_change_results():
    base = Config()
    texts = dict.fromkeys(
        ("revision", "adapter", "columns", "answers", "verdicts", "reuse", "ray"), "x"
    )
    for field in fields(Config):
        value = getattr(base, field.name)
        other = {bool: True, int: 7, float: 0.5, str: "x", tuple: ("x",)}.get(type(value), 7)
        other = {"prompt": "text", "finder": "all", "where": "post", "delta": "logit",
                 "balance": "none", "layers": "single", "shots": 2, "keys": "question",
                 "resamples": 500, "grouping": "majority", "keep_states": "none",
                 "engine": "vllm",
                 "evidence": ("heads",), **texts}.get(field.name, other)  # fmt: skip
        differs = replace(base, **{field.name: other}).identity() != base.identity()
        assert differs == field.metadata["changes"], field.name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": "haiku"}, "Unknown prompt 'haiku'. Accepted: auto, chat, text."),
        ({"finder": "eyes"}, "Accepted: auto, given, rules, model, spacy, all."),
        ({"where": "mid"}, "Unknown where 'mid'. Accepted: pre, post."),
        ({"delta": "nats"}, "Unknown delta 'nats'. Accepted: points, relative, logit."),
        (
            {"layers": "window:0"},
            "Unknown layers 'window:0'. Accepted: cumulative, single, window:w",
        ),
        (
            {"grouping": "fixed:x"},
            "Unknown grouping 'fixed:x'. Accepted: per-layer, majority, fixed:k",
        ),
        ({"evidence": ("x",)}, "Unknown evidence 'x'. Accepted: all, none, patching, answer-only"),
        ({"folds": 2}, "folds is 2. Accepted: 3 or more."),
        ({"shots": 9}, "shots is 9. Accepted: 0 to 4."),
        ({"limit": 0}, "limit is 0. Accepted: 1 or more."),
        ({"C": 0.0}, "C is 0.0. Accepted: a number above 0."),
        ({"data": ()}, "No questions were asked for."),
        ({"folds": "five"}, "folds is 'five'. Accepted: a whole number."),
        ({"layers": 3}, "layers is 3. Accepted: a text."),
        ({"data": ("a", 1)}, "Accepted: a list, each a text."),
        ({"robust": 1}, "robust is 1. Accepted: true or false."),
        ({"shots": True}, "shots is True. Accepted: a whole number."),
        ({"seed": -1}, "seed is -1. Accepted: 0 or more."),
        ({"resamples": 10**9}, "resamples is 1000000000. Accepted: 1000000 or less."),
        ({"C": float("inf")}, "C is inf. Accepted: a number above 0."),
        ({"model": "a\ud800"}, "holds a character that no text has"),
    ],
)
def test_a_bad_choice_is_one_sentence(given, said):
    with pytest.raises(UserError) as error:
        Config(**given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_another_run_is_refused_with_what_differs(tmp_path: Path):
    Store.open(tmp_path / "run", ONE)
    with pytest.raises(UserError) as error:
        Store.open(tmp_path / "run", ONE | {"limit": 9})
    assert "limit: 8 there, 9 asked" in str(error.value)
    assert "choose another --out" in str(error.value)


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not a run of anchorscope"):
        Store.open(tmp_path, ONE)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_run_json_is_readable_json(tmp_path: Path):
    store = Store.open(tmp_path / "run", ONE)
    store.save_info({"title": "Δ"})
    said = json.loads((tmp_path / "run/run.json").read_text(encoding="utf-8"))
    assert len(said.pop("checksum")) == 64
    assert said == {"identity": ONE, "finished": False, "format": 3, "title": "Δ"}
