"""Questions read in another process: the same ones, or this process reads them itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anchorscope import ahead
from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.errors import UserError
from anchorscope.pipeline.request import question_sets
from anchorscope.spans import by_rules


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test's questions are marked with is forgotten before and after it."""
    monkeypatch.setattr(by_rules, "KNOWN", {})
    monkeypatch.setattr(ahead, "KNOWN", by_rules.KNOWN)


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch were not here yet."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def file_of(folder: Path, name: str, rows: int = 4000) -> str:
    path = folder / name
    lines = [
        {"question": f"Who wrote book {n}, «é»?", "answers": [f"Writer {n}", "b | c"], "id": n}
        for n in range(rows)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def test_the_other_process_reads_the_same_questions(tmp_path, before_torch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the user')", encoding="utf-8")
    data = (file_of(tmp_path, "one.jsonl"), file_of(tmp_path, "two.jsonl"))
    config = Config(data=data, limit=50, seed=3)
    here = [load_questions(name, limit=50, seed=3) for name in data]
    assert ahead.begin(config)
    assert ahead.taken(config) == here
    assert ahead.taken(config) is None  # taken once: a file may change
    assert question_sets(None, config) == here


def test_what_it_read_is_what_the_run_gets(tmp_path, before_torch, monkeypatch) -> None:
    config = Config(data=(file_of(tmp_path, "one.jsonl"),), limit=50)
    here = question_sets(None, config)
    assert ahead.begin(config)
    monkeypatch.setattr("anchorscope.pipeline.request.load_questions", pytest.fail)
    assert question_sets(None, config) == here


def test_what_it_marked_is_what_the_rules_mark_here(tmp_path, before_torch, monkeypatch) -> None:
    config = Config(data=(file_of(tmp_path, "one.jsonl"),), limit=50)
    (here,) = question_sets(None, config)
    by_hand = {question.text: by_rules.rules_spans(question.text) for question in here}
    assert not by_rules.KNOWN
    assert ahead.begin(config)
    ahead.taken(config)
    assert by_hand == by_rules.KNOWN
    monkeypatch.setattr(by_rules, "_marked", pytest.fail)  # it is not looked for again
    assert {text: by_rules.rules_spans(text) for text in by_hand} == by_hand


def test_other_questions_are_not_taken_for_these(tmp_path, before_torch) -> None:
    config = Config(data=(file_of(tmp_path, "one.jsonl"),), limit=50)
    assert ahead.begin(config)
    assert ahead.taken(Config(data=config.data, limit=51)) is None
    assert ahead.taken(config) is not None


def test_a_mistake_is_said_by_this_process(tmp_path, before_torch, capfd) -> None:
    path = Path(file_of(tmp_path, "bad.jsonl"))
    path.write_text(path.read_text(encoding="utf-8") + "\n{", encoding="utf-8")
    config = Config(data=(str(path),))
    assert ahead.begin(config)
    with pytest.raises(UserError, match=r"bad\.jsonl could not be read as \.jsonl: line 4001"):
        question_sets(None, config)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("data", [("atlas",), ("popqa",), ("no-such-file.jsonl",), ("hub:a/b",)])
def test_nobody_is_asked_for_what_is_no_file(before_torch, data) -> None:
    assert not ahead.begin(Config(data=data))


def test_nobody_is_asked_where_it_would_not_help(tmp_path, monkeypatch) -> None:
    small = Config(data=(file_of(tmp_path, "small.jsonl", rows=3),))
    large = Config(data=(file_of(tmp_path, "large.jsonl"),))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not ahead.begin(large)  # the imports are done already
    monkeypatch.delitem(sys.modules, "torch")
    assert not ahead.begin(small)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert not ahead.begin(large)


def test_it_ends_with_a_parent_that_does_not_wait(tmp_path) -> None:
    """Its answer finds nobody: it ends, since its output is closed."""
    config = f"Config(data=({file_of(tmp_path, 'one.jsonl')!r},))"
    told = "from anchorscope import ahead; from anchorscope.config import Config; import os; "
    told += f"ahead.begin({config}); "
    told += "print(next(iter(ahead._under_way.values())).pid, flush=True); os._exit(0)"
    source = str(Path(ahead.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", told],
        env={"PYTHONPATH": source},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=60,
    )
    ended = Path(f"/proc/{int(done.stdout)}/stat")
    for _ in range(600):
        if not ended.exists() or " Z " in ended.read_text(encoding="utf-8"):
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail("it is still there after a minute")
