"""How long the page of `anchorscope view` takes to answer a click, in a real browser.

python benchmarks/explore.py                       # 5,000 samples, 36 layers, 7 passes
python benchmarks/explore.py --samples 20000

Makes a run folder of random numbers, writes its page, and drives it in headless Chromium. Of each
interaction it prints the median and the longest time in milliseconds: of the handler, and until
the next frame was painted; and the processor time of the page's thread for it, layout and paint
included, which other work on the machine does not change. Exit code 1 where a median is above
100 ms. Needs playwright and chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from playwright.sync_api import sync_playwright
from safetensors.numpy import save_file

from anchorscope.probes.probe_set import ProbeSet
from anchorscope.run_folder.view import RunView
from anchorscope.show.explore.page import write_view

LIMIT = 100  # milliseconds
REPEATS = 15
WIDTH = 4  # of the made-up states
PASSES = ("neutral", "content", "question", "answer-only", "window-5")  # beside clean and knockout
MEASURE = """async ([act, n]) => {
  const go = new Function("i", act), handler = [], painted = [];
  for (let i = 0; i < n; i++) {
    const start = performance.now();
    go(i);
    handler.push(performance.now() - start);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    painted.push(performance.now() - start);
  }
  return [handler, painted];
}"""
DRAG = """
const box = node.getBoundingClientRect(), at = (x, y, kind) => node.dispatchEvent(new PointerEvent(
  kind, {clientX: box.left + x, clientY: box.top + y, pointerId: 1, button: 0, bubbles: true}));
node.setPointerCapture = () => {};
at(60, 30, 'pointerdown'); at(200 + 10 * i, 180, 'pointermove'); at(200 + 10 * i, 180, 'pointerup');
"""
ACTIONS = {
    "layer slider": "const s = document.getElementById('layer-0'); s.value = 5 + i; "
    "s.dispatchEvent(new Event('input'));",
    "mode": "document.querySelectorAll('#switches .switch button')[i % 2].click();",
    "open a sample": "document.querySelectorAll('#table tbody tr')[i].click();",
    "layer slider, sample open": "const s = document.getElementById('layer-0'); s.value = 20 - i; "
    "s.dispatchEvent(new Event('input'));",
    "intervention": "document.querySelector('.legend [data-pass=matched]').click();",
    "sort by ΔP": "document.querySelector('[data-sort=delta_p]').click();",
    "sort by question": "document.querySelector('[data-sort=question]').click();",
    "search": "const s = document.getElementById('search'); s.value = String(i); "
    "s.dispatchEvent(new Event('input'));",
    "clear the search": "const s = document.getElementById('search'); "
    "s.value = i % 2 ? 'x' : ''; s.dispatchEvent(new Event('input'));",
    "drag in the scatter": f"const node = document.querySelector('canvas');{DRAG}",
    "drag in the curves": f"const node = document.querySelector('svg.chart');{DRAG}",
    "dataset": "document.querySelectorAll('#switches .switch')[1].querySelector('button').click();",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--layers", type=int, default=36)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = RunView.open(make_run(Path(folder), given.samples, given.layers))
        begun = time.monotonic()
        page = write_view([run]).page
        seconds, size = time.monotonic() - begun, page.stat().st_size / 1e6
        print(f"{given.samples} samples, {given.layers} layers: {size:.1f} MB in {seconds:.1f} s")
        return report(measure(page.as_uri()))


class Times(NamedTuple):
    """Milliseconds of one interaction, repeated."""

    handler: list[float]
    painted: list[float]
    processor: float  # the mean


def measure(address: str) -> dict[str, Times]:
    """The times of every action."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        # The page's policy forbids `new Function`; the benchmark alone is let past it.
        tab = browser.new_context(
            viewport={"width": 1400, "height": 900}, bypass_csp=True
        ).new_page()
        begun = time.monotonic()
        tab.goto(address)
        tab.wait_for_selector("#table tbody tr")
        print(f"opened in {time.monotonic() - begun:.1f} s")
        clock = tab.context.new_cdp_session(tab)
        clock.send("Performance.enable", {"timeDomain": "threadTicks"})
        times = {name: timed(tab, clock, act) for name, act in ACTIONS.items()}
        browser.close()
    return times


def timed(tab: Any, clock: Any, act: str) -> Times:
    before = _busy(clock)
    handler, painted = tab.evaluate(MEASURE, [act, REPEATS])
    return Times(handler, painted, 1000 * (_busy(clock) - before) / REPEATS)


def _busy(clock: Any) -> float:
    """Processor seconds of the page's thread so far."""
    metrics = clock.send("Performance.getMetrics")["metrics"]
    return next(of["value"] for of in metrics if of["name"] == "TaskDuration")


def report(times: dict[str, Times]) -> int:
    names = ("handler", "longest", "painted", "longest", "processor")
    print(f"\n{'interaction':28}" + "".join(f"{name:>10}" for name in names) + "   ms")
    for name, (handler, painted, processor) in times.items():
        numbers = (np.median(handler), max(handler), np.median(painted), max(painted), processor)
        print(f"{name:28}" + "".join(f"{number:10.1f}" for number in numbers))
    slowest = max(float(np.median(of.painted)) for of in times.values())
    print(f"\nslowest median until painted: {slowest:.0f} ms (at most {LIMIT})")
    return int(slowest > LIMIT)


def make_run(folder: Path, samples: int, layers: int) -> Path:
    """A run folder of random numbers with every file that the page reads."""
    rng = np.random.default_rng(0)
    ids = [f"made:test:{i}" for i in range(samples)]
    for part in ("tables", "probes/made", "states"):
        (folder / part).mkdir(parents=True)
    _samples(ids, rng).to_parquet(folder / "samples.parquet")
    table = _pathways(ids, layers, rng)
    table.to_parquet(folder / "tables" / "pathways.parquet")
    keys = {"model": "made", "dataset": "made"}
    curves = [
        {**keys, "layer": k, "mode": m, "pathway": p, "n": samples // 2}
        | {f"{of}{end}": float(rng.normal()) for of in ("delta_p", "delta_logit")
           for end in ("", "_low", "_high")}
        for m in ("paper", "strict") for p in "QA" for k in range(1, layers + 1)
    ]  # fmt: skip
    pd.DataFrame(curves).to_csv(folder / "tables" / "layers.csv", index=False)
    controls = [
        {**keys, "layer": k, "intervention": "neutral", "flip_rate": 0.1, "flip_rate_low": 0.0,
         "flip_rate_high": 0.2, "delta_p": 0.0, "n": samples} for k in range(1, layers + 1)
    ]  # fmt: skip
    pd.DataFrame(controls).to_csv(folder / "tables" / "controls.csv", index=False)
    _states(folder, ids, layers, rng)
    info = {"model": {"name": "made"}, "datasets": [{"name": "made", "title": "Made"}]}
    (folder / "run.json").write_text(json.dumps({**info, "finished": True}))
    return folder


def _samples(ids: list[str], rng: np.random.Generator) -> pd.DataFrame:
    n = len(ids)
    words = [f"thing {rng.integers(1e6)} of place {i % 97}" for i in range(n)]
    return pd.DataFrame(
        {
            "id": ids, "dataset": "made", "question": [f"What is the {w}?" for w in words],
            "answers": [["it"]] * n, "subjects": [[w] for w in words], "relation": None,
            "popularity": rng.lognormal(8, 2, n), "entity": words,
            "answer": [f"The answer {i}" for i in range(n)], "token_ids": [[1]] * n,
            "log_probs": [[-1.0]] * n, "first_entropy": 1.0, "finished": True,
            "verdict": rng.choice(["right", "wrong"], n), "finder": "given",
            "span_starts": [[12]] * n, "span_stops": [[12 + len(w)] for w in words],
            "answer_start": 0, "answer_stop": 10, "prompt_ids": [[1, 2, 3]] * n,
            "question_tokens": [[1, 2]] * n, "exact_question": [[2]] * n, "exact_answer": [[3]] * n,
            "fold": np.arange(n) % 5,
        }
    )  # fmt: skip


def _pathways(ids: list[str], layers: int, rng: np.random.Generator) -> pd.DataFrame:
    size, parts = len(ids) * layers, []
    for mode in ("paper", "strict"):
        clean = rng.normal(0, 2, size)
        cut = clean + rng.normal(0, 1, size)
        parts.append(pd.DataFrame({
            "id": np.repeat(ids, layers), "dataset": "made",
            "layer": np.tile(np.arange(1, layers + 1), len(ids)), "mode": mode, "z": 0,
            "prediction": (clean > 0).astype(int), "logit_clean": clean, "logit_knockout": cut,
            "pathway": np.where((clean > 0) != (cut > 0), "Q", "A"),
        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _states(folder: Path, ids: list[str], layers: int, rng: np.random.Generator) -> None:
    ProbeSet(
        probes=("paper", "a", "b"),
        weights=rng.normal(size=(3, 5, layers, WIDTH)).astype(np.float32),
        intercept=np.zeros((3, 5, layers)),
        n_train=np.ones((3, 5), dtype=np.int64),
        C=1.0,
        balance="weights",
    ).save(folder / "probes" / "made")
    for name in PASSES:
        states = rng.normal(size=(len(ids), layers, WIDTH)).astype(np.float16)
        (folder / "states" / name).mkdir()
        file = folder / "states" / name / "00000.safetensors"
        save_file({"states": states}, file, metadata={"ids": json.dumps(ids)})


if __name__ == "__main__":
    sys.exit(main())
