"""How anchorscope's cost grows: with questions, lengths, interventions and windows.

    python benchmarks/growth.py [--repeats 3] [--json FILE]

On a random model of 16 blocks. Costs are medians of processor seconds over all threads, which
neighbours on the machine hardly change; on a GPU, wall seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from growth_job import Size, job, make_windows, random_model
from peers_clock import Clock

from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import ANSWER_ONLY, KNOCKOUT, NEUTRAL, QUESTION
from anchorscope.models import Model

EVERY = (KNOCKOUT, NEUTRAL, QUESTION, ANSWER_ONLY)
ALIKE = tuple(Intervention(name=f"knockout-{n}") for n in range(4))
GROWTH: dict[str, list[tuple[int, Size]]] = {
    "questions": [(n, Size(questions=n)) for n in (64, 128, 256)],
    "prefix": [(n, Size(prefix=n)) for n in (64, 128, 256, 512)],
    "question": [(n, Size(question=n)) for n in (8, 16, 32, 64)],
    "interventions": [(n, Size(interventions=ALIKE[:n])) for n in (1, 2, 3, 4)],
    "of_a_run": [(n, Size(interventions=EVERY[:n])) for n in (1, 2, 3, 4)],
}
WHAT = {
    "questions": "Questions",
    "prefix": "Tokens of the prefix that all questions share",
    "question": "Tokens of a question",
    "interventions": "Interventions beside the clean pass, all of one length",
    "of_a_run": "Those of a run, which differ in length: knockout, random, question, answer-only",
}
WINDOW, WINDOW_QUESTIONS = 5, 16


def cost(work: Callable[[], object], repeats: int) -> float:
    """The median seconds of a piece of work."""
    spent = []
    for _ in range(repeats):
        clock = Clock()
        with clock.of("work"):
            work()
        spent.append((clock.wall if torch.cuda.is_available() else clock.cpu)["work"])
    return statistics.median(spent)


def grow(model: Model, sizes: Sequence[tuple[int, Size]], repeats: int) -> dict[str, Any]:
    """Seconds and peak memory at each size, and the straight line through the seconds."""
    values, seconds, peaks = [], [], []
    for value, size in sizes:
        forget_peak()
        values.append(value)
        seconds.append(cost(lambda size=size: job(model, size), repeats))
        peaks.append(peak_mb())
    return {"values": values, "seconds": seconds, "peak_mb": peaks} | line(values, seconds)


def line(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """The line of least squares, and the share of the variance that it explains."""
    slope, start = np.polyfit(x, y, 1)
    left = np.square(np.asarray(y) - (start + slope * np.asarray(x))).sum()
    whole = np.square(np.asarray(y) - np.mean(y)).sum()
    return {"slope": float(slope), "intercept": float(start), "r2": float(1 - left / whole)}


def windows(model: Model, repeats: int) -> dict[str, float]:
    """The sweep over all windows of five blocks against a pass for each of them."""
    with Lease(model) as lease:
        made = make_windows(lease, Size(questions=WINDOW_QUESTIONS), WINDOW)
        sweep, passes = made.sweep(), made.passes()
        far = (sweep - passes).abs().amax() / passes.abs().amax()
        found = {"sweep": cost(made.sweep, repeats), "passes": cost(made.passes, repeats)}
    blocks = model.blocks
    return found | {
        "blocks": blocks,
        "width": WINDOW,
        "ratio": found["passes"] / found["sweep"],
        "expected_ratio": blocks / (1 + WINDOW),
        "largest_difference": float(far),
    }


def forget_peak() -> None:
    """Lets the peak begin at what is resident now."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The most memory since then; NaN where the system does not say."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    (peak,) = (li for li in status.read_text().splitlines() if li.startswith("VmHWM"))
    return int(peak.split()[1]) / 2**10


def table(name: str, found: dict[str, Any]) -> str:
    """One kind of growth: sizes, seconds, and both as multiples of the first."""
    first, begun = found["values"][0], found["seconds"][0]
    rows = [f"{WHAT[name]}", f"{'size':>8}{'seconds':>10}{'× size':>9}{'× time':>9}{'peak MB':>10}"]
    for value, seconds, peak in zip(
        found["values"], found["seconds"], found["peak_mb"], strict=True
    ):
        rows.append(
            f"{value:8}{seconds:10.2f}{value / first:9.2f}{seconds / begun:9.2f}{peak:10.0f}"
        )
    rows.append(
        f"line: {found['intercept']:.2f} s + {1000 * found['slope']:.2f} ms each, "
        f"R² {found['r2']:.4f}"
    )
    return "\n".join(rows)


def windows_table(found: dict[str, float]) -> str:
    return (
        f"All windows of {found['width']} blocks over {found['blocks']} blocks\n"
        f"one sweep {found['sweep']:.2f} s, a pass for each {found['passes']:.2f} s: "
        f"{found['ratio']:.2f} times (by tokens {found['expected_ratio']:.2f}); "
        f"largest difference {found['largest_difference']:.1e} of the largest state"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = random_model()
    job(model, Size(questions=8))  # to warm up
    found: dict[str, Any] = {}
    for name, sizes in GROWTH.items():
        found[name] = grow(model, sizes, given.repeats)
        print(table(name, found[name]), end="\n\n", flush=True)
    found["windows"] = windows(model, given.repeats)
    print(windows_table(found["windows"]))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
