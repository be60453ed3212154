"""Data flows one way: a package imports only from those to its left, and no file in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

PACKAGE = Path(__file__).parents[1] / "src" / "anchorscope"
ORDER = [
    {"errors", "records", "progress", "parallel"},
    {"stats", "run_folder"},
    {"config"},
    {"engine_vllm"},
    {"datasets", "models"},
    {"engine"},
    {"spans", "answers"},
    {"probes"},
    {"pathways"},
    {"evidence"},
    {"claims"},
    {"detect"},
    {"show"},
    {"pipeline"},
    {"simulate"},
    {"inspection"},
    {"web"},
    {"app"},
    {"serve"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
ENTRANCES = ("__init__", "__main__")  # they lead into the house and belong to no room


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        ".".join(("anchorscope", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def imports(path: Path) -> set[str]:
    """The modules that a file imports at any depth of it, for types alone too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anchorscope"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else str(node.module))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules()}
    return found - {"anchorscope"}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import one another, each as a sorted list."""
    names = sorted(edges)
    place = {name: number for number, name in enumerate(names)}
    pairs = [(place[a], place[b]) for a in names for b in edges[a] if b in place and a != b]
    rows, columns = ([pair[side] for pair in pairs] for side in (0, 1))
    graph = csr_matrix(([1] * len(pairs), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(graph, directed=True, connection="strong")
    groups = [
        [n for n, group in zip(names, labels, strict=True) if group == g] for g in set(labels)
    ]
    return sorted(group for group in groups if len(group) > 1)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_file_imports_from_its_right(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in ENTRANCES:
        return
    assert part in RANK, f"say in ORDER where {part} belongs"
    for other in imports(path):
        assert RANK[other.split(".")[1]] <= RANK[part], f"{part} may not import {other}"


def test_no_files_import_each_other():
    """Imports for types count: a circle of ideas is one even where Python does not mind it."""
    edges = {name: imports(path) for name, path in modules().items() if name != "anchorscope"}
    assert circles(edges) == []


# The command line and figures; and what the processes import that make a run's tables and figures.
WITHOUT_TORCH = (
    "anchorscope, anchorscope.cli, anchorscope.show, anchorscope.probes.cross_fit, "
    "anchorscope.pathways.dataset, anchorscope.evidence.answer_only, "
    "anchorscope.evidence.awareness, anchorscope.evidence.boundary, anchorscope.show.figures"
)


def imported_by(code: str) -> set[str]:
    """The modules that a new process has loaded after this code."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_figures_and_processes_do_not_wait_for_torch():
    assert not {"torch", "transformers", "matplotlib.pyplot"} & imported_by(
        f"import {WITHOUT_TORCH}"
    )


def test_an_analysis_of_stored_states_does_not_wait_for_the_engine():
    there = imported_by("import anchorscope.pipeline.own_states, anchorscope.simulate.run")
    assert "pandas" in there and not {"torch", "transformers"} & there


def test_a_run_does_not_wait_for_what_other_processes_need():
    """Fits, tests and figures are made by processes that import these while the model reads."""
    there = imported_by(
        "from anchorscope.cli.terminal import Bar\n"
        "from anchorscope.config import EVIDENCE\n"
        "from anchorscope.evidence.pieces import piece_of\n"
        "from anchorscope.pipeline.run import run\n"
        "for name in EVIDENCE: piece_of(name)"
    )
    assert "torch" in there
    assert not {"sklearn", "scipy.stats", "matplotlib", "datasets"} & there
