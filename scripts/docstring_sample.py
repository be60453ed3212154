"""Print forty randomly drawn docstrings of the package with their names, to review them.

python scripts/docstring_sample.py SEED [COUNT]
"""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "anchorscope"
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main(seed: str, count: str = "40") -> None:
    found = [
        (f"{file.relative_to(SOURCE)}:{getattr(node, 'name', '')}", ast.get_docstring(node))
        for file in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, KINDS) and ast.get_docstring(node)
    ]
    for name, text in random.Random(int(seed)).sample(found, int(count)):
        print(f"{name}\n{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
