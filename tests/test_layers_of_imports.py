"""Data flows one way: a package imports only from those to its left."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "anchorscope"
ORDER = [
    {"errors", "records", "progress"},
    {"config", "store"},
    {"datasets", "models", "states", "samples", "identity"},
    {"engine"},
    {"spans", "answers"},
    {"prepare", "style"},
    {"extract", "probes"},
    {"pathways"},
    {"evidence"},
    {"detect"},
    {"show"},
    {"analyse", "asked"},
    {"ablate", "gather", "run_model"},
    {"simulate"},
    {"stages"},
    {"pipeline", "collect"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports, at any depth of it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anchorscope."):
            found.add(str(node.module).split(".")[1])
        if isinstance(node, ast.ImportFrom) and node.module == "anchorscope":
            found |= {alias.name for alias in node.names if alias.name in RANK}
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_file_imports_from_its_right(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    assert part in RANK, f"say in ORDER where {part} belongs"
    for other in imports(path):
        assert RANK[other] <= RANK[part], f"{part} may not import {other}"


@pytest.mark.parametrize("module", ["anchorscope", "anchorscope.cli", "anchorscope.show"])
def test_help_and_figures_do_not_wait_for_torch(module):
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers"} & set(loaded.stdout.split())
