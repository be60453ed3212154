"""Run one way of `peers.py` once, in its own process.

    python benchmarks/peers_work.py WAY JOB OUT

OUT.json gets the seconds, the peak memory and the lines of code, OUT.npz the answers and states.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import resource
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from peers_clock import Clock
from peers_job import Job


def work(way: str, job: Job, out: Path) -> None:
    """Load the model, warm up on two questions, then time the job and write its results."""
    module = importlib.import_module(f"way_{way}")
    model = module.load(job)
    loaded = resident_mb("VmRSS")
    module.run(model, job.first(2), Clock())
    clock = Clock()
    answers, clean, knocked = module.run(model, job, clock)
    states = {"clean": clean, "knockout": knocked}
    arrays = {name: own.numpy() for name, own in states.items() if own is not None}
    np.savez(out.with_suffix(".npz"), **arrays)
    facts = {
        "seconds": dict(clock.wall),
        "cpu_seconds": dict(clock.cpu),
        "answers": answers,
        "loaded_mb": loaded,
        "peak_mb": peak_mb(),
        "lines": lines(module),
    }
    out.with_suffix(".json").write_text(json.dumps(facts))


def peak_mb() -> float:
    """Peak memory of this process: allocated on the GPU if there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resident_mb("VmHWM")


def resident_mb(name: str) -> float:
    """Resident memory now (VmRSS) or at its peak (VmHWM); outside Linux always the peak."""
    # ru_maxrss would start at the size of the process that started this one.
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (li for li in status.read_text().splitlines() if li.startswith(name))
        return int(line.split()[1]) / 2**10
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def lines(module: ModuleType) -> int:
    """Count the lines of code of a way as `ast.unparse` formats them, without docs and clocks."""
    count = 0
    for function in module.CODE:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                del node.body[0]
        written = ast.unparse(tree).splitlines()
        count += sum(not line.strip().startswith("with clock.of(") for line in written)
    return count


if __name__ == "__main__":
    work(sys.argv[1], Job.load(Path(sys.argv[2])), Path(sys.argv[3]))
