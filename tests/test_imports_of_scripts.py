"""Files of benchmarks/ and scripts/ use no name of ours that is gone."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/**/*.py")])


def imported(file: Path) -> list[tuple[str, str]]:
    """Module and name of every import from the package or the tests' kit."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    ]
    modules = [
        (alias.name, "") for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    ]
    return [(m, n) for m, n in (*names, *modules) if m.split(".")[0] in ("anchorscope", "kit")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_names_that_a_file_imports_exist(file: Path) -> None:
    for module, name in imported(file):
        is_there = not name or hasattr(import_module(module), name)
        assert is_there or find_spec(f"{module}.{name}"), f"{module} has no {name}"
