"""The mutation script: it says which faults survive, and its table fits the source."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAULT = """
[[mutant]]
name = "{name}"
file = "src/sums.py"
old = "{old}"
new = "{new}"
tests = ["test_sums.py::{test}"]
"""


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A package of one function, with a test that sees it and one that does not."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text(
        "from sums import add\n\n"
        "def test_sum():\n    assert add(2, 3) == 5\n\n"
        "def test_nothing():\n    assert add\n\n"
        "def test_wrong():\n    assert add(2, 3) == 6\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return tmp_path


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ({"old": "a + b", "test": "test_sum"}, 0, "caught"),
        ({"old": "a + b", "test": "test_nothing"}, 1, "SURVIVED"),
        ({"old": "a - b", "test": "test_sum"}, 1, "STALE: its old text occurs 0 times"),
        ({"old": "a + b", "test": "test_wrong"}, 1, "THE TESTS FAIL WITHOUT ANY FAULT"),
    ],
)
def test_exit_code_and_words_say_what_became_of_a_fault(
    mutants, checkout, capsys, fault, code, words
):
    table = checkout / "faults.toml"
    table.write_text(FAULT.format(name="one", new="a * b", **fault))
    before = {file: file.read_bytes() for file in checkout.rglob("*.py")}
    assert mutants.main(["--table", str(table)], root=checkout) == code
    assert words in capsys.readouterr().out
    assert {file: file.read_bytes() for file in checkout.rglob("*.py")} == before


def test_every_fault_of_the_table_can_be_put_back_and_names_tests_that_are_there(mutants):
    for mutant in mutants.read_table(mutants.TABLE):
        assert mutant.file.startswith("src/") and mutant.stale(ROOT) == "", mutant.name
        assert mutant.new != mutant.old and mutant.tests, mutant.name
        for test in mutant.tests:
            file, name = test.split("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name.split('[')[0]}(" in text, mutant.name
