"""Run docs/tutorial.ipynb, store its outputs in it, and print the seconds of each cell.

python scripts/tutorial.py            # in place
python scripts/tutorial.py --out DIR  # into another folder
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from nbformat import NotebookNode

DOCS = Path(__file__).parents[1] / "docs"
MOST_BYTES = 1_000_000  # of the notebook with its outputs, as it is committed


def notebook_of(name: str) -> NotebookNode:
    """Read the notebook docs/NAME.ipynb without outputs."""
    notebook = nbformat.read(DOCS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The time of one cell: wall seconds, and seconds of all processors together."""

    line: str
    seconds: float
    processor: float


def execute(notebook: NotebookNode, folder: Path) -> list[Cell]:
    """Run every cell in an empty folder, and time each."""
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}})
    cells = []
    with client.setup_kernel():
        kernel = psutil.Process(_pid_of(client))
        for number, cell in enumerate(notebook.cells):
            begun, used = time.monotonic(), _processor(kernel)
            client.execute_cell(cell, number)
            if cell.cell_type == "code":
                cell.metadata.pop("execution", None)
                took, processor = time.monotonic() - begun, _processor(kernel) - used
                line = _first_line(cell.source)
                cells.append(Cell(line=line, seconds=took, processor=processor))
    return cells


def _pid_of(client: NotebookClient) -> int:
    return client.km.provisioner.pid  # type: ignore[union-attr]


def _processor(kernel: psutil.Process) -> float:
    """Processor seconds of the kernel and of the processes that it started."""
    total = 0.0
    for process in (kernel, *kernel.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def without_noise(notebook: NotebookNode) -> NotebookNode:
    """Remove the outputs of a notebook that differ from machine to machine.

    These are progress bars, warnings, and the text beside a table or a card, which holds versions
    and paths.
    """
    notebook["metadata"]["language_info"] = nbformat.from_dict({"name": "python"})
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        for out in cell.outputs:
            if {"text/html", "image/png"} & set(out.get("data", {})):
                out["data"].pop("text/plain", None)
    return notebook


def _first_line(source: str) -> str:
    lines = [line for line in source.splitlines() if line and not line.startswith(("#", "%"))]
    return lines[0][:60]


def write(notebook: NotebookNode, file: Path) -> None:
    for cell in notebook.cells:  # a line of the file for each line of text; outputs as they are
        cell["source"] = cell.source.splitlines(keepends=True)
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if len(text) > MOST_BYTES:
        raise SystemExit(f"{file} would have {len(text):,} bytes; at most {MOST_BYTES:,}")
    file.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DOCS)
    out = parser.parse_args().out
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # what the tutorial says: no download
    notebook = notebook_of("tutorial")
    with tempfile.TemporaryDirectory() as folder:
        cells = execute(notebook, Path(folder))
    print("seconds  of processors")
    for cell in cells:
        print(f"{cell.seconds:7.1f}  {cell.processor:13.1f}  {cell.line}")
    print(f"{sum(cell.seconds for cell in cells):7.1f}  {'':13}  in all")
    write(without_noise(notebook), out / "tutorial.ipynb")


if __name__ == "__main__":
    main()
