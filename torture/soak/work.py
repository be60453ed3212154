"""The work of the soak: questions collected, runs one after the other, samples analysed."""

from __future__ import annotations

import gc
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.config import Config
from anchorscope.detect.threshold import threshold_band
from anchorscope.models import load_model
from anchorscope.pipeline.collect import collect
from anchorscope.pipeline.own_states.analyse import analyse
from anchorscope.stats.intervals import bootstrap_mean, group_means
from anchorscope.stats.ranking import auroc_draws, auroc_interval

MB = 1 << 20
LAYERS, WIDTH = 4, 32  # of the samples' states


class Watch:
    """The process's resident memory, looked at ten times a second."""

    def __init__(self) -> None:
        self.process, self.seen = psutil.Process(), [psutil.Process().memory_info().rss]
        self._over = threading.Event()

    def look(self) -> None:
        while not self._over.wait(0.1):
            self.seen.append(self.process.memory_info().rss)

    def stop(self) -> None:
        self._over.set()

    def at(self, share: float) -> float:
        """Megabytes after this share of the time, the median of a tenth of it."""
        middle = round(share * (len(self.seen) - 1))
        tenth = max(1, len(self.seen) // 20)
        return round(float(np.median(self.seen[max(0, middle - tenth) : middle + tenth])) / MB, 1)


@contextmanager
def watched() -> Iterator[Watch]:
    """A watch that runs until the block ends."""
    watch = Watch()
    thread = threading.Thread(target=watch.look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join()


def _questions(file: Path, count: int) -> Path:
    rows = (
        {"id": str(n), "question": f"Where is lake {n:06d}?", "answers": ["a"]}
        for n in range(count)
    )
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


def _config() -> Config:
    return Config(limit=None, shots=0, max_tokens=2, dtype="float32", device="cpu", prompt="text")


def many_questions(folder: Path, count: int) -> dict[str, Any]:
    """Memory while one run collects so many questions of a tiny random model."""
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    file = _questions(folder / "lakes.jsonl", count)
    begun = time.monotonic()
    with watched() as watch:
        collect(model, file, out=folder / "run", config=_config())
    marks = {f"mb_at_{of}_percent": watch.at(of / 100) for of in (25, 50, 75, 95)}
    return {"questions": count, "seconds": round(time.monotonic() - begun, 1), **marks}


def many_runs(folder: Path, count: int) -> dict[str, Any]:
    """Memory, threads and open files after each of so many runs in this process."""
    model = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    process, facts = psutil.Process(), []
    for number in range(count):
        file = _questions(folder / f"lakes-{number}.jsonl", 16)
        collect(model, file, out=folder / f"run-{number}", config=_config())
        gc.collect()
        facts.append((process.memory_info().rss / MB, process.num_threads(), process.num_fds()))
    early, late = facts[min(9, count - 1)], facts[-1]
    return {
        "runs": count,
        "mb_after_10": round(early[0], 1),
        "mb_after_all": round(late[0], 1),
        "threads": [early[1], late[1]],
        "open_files": [early[2], late[2]],
    }


def many_samples(folder: Path, count: int) -> dict[str, Any]:
    """The most memory that the analysis of so many samples takes, and their states' size."""
    rng = np.random.default_rng(0)
    z = (np.arange(count) % 2).astype(np.int64)
    with (folder / "states.npz").open("wb") as file:
        shape = (count, LAYERS, WIDTH)
        clean = rng.standard_normal(shape, dtype=np.float32) + 0.5 * z[:, None, None]
        moved = clean + rng.standard_normal(shape, dtype=np.float32)
        np.savez(file, clean=clean, knockout=moved, random=clean + np.float32(0.1), z=z)
    size = 3 * clean.nbytes
    del clean, moved
    gc.collect()
    config = Config(resamples=100, fold_seeds=1, folds=3, evidence=())
    begun, before = time.monotonic(), psutil.Process().memory_info().rss
    with watched() as watch:
        analyse(folder / "states.npz", out=folder / "run", config=config)
    return {
        "samples": count,
        "states_mb": round(size / MB, 1),
        "most_mb_above_the_start": round((max(watch.seen) - before) / MB, 1),
        "seconds": round(time.monotonic() - begun, 1),
    }


def many_draws(folder: Path, count: int) -> dict[str, Any]:
    """The most memory of the bootstraps of so many samples, and a checksum of their numbers."""
    rng = np.random.default_rng(1)
    values, z = rng.normal(size=count), (rng.random(count) < 0.4).astype(int)
    shared = rng.integers(0, count // 2 + 1, size=count)
    members = np.column_stack([z == 1, z == 0])
    found: list[Any] = []
    begun, before = time.monotonic(), psutil.Process().memory_info().rss
    with watched() as watch:
        for entity in (None, shared):
            how: dict[str, Any] = {"seed": 3, "resamples": 1000, "entity": entity}
            found += [
                bootstrap_mean(values, **how),
                auroc_interval(z, values + z, **how),
                auroc_draws(z, [values + z, values], **how),
                *group_means(np.column_stack([values, values + z]), members, **how),
                threshold_band(1 / (1 + np.exp(-values - z)), z, entity=entity, seed=3),
            ]
    numbers = b"".join(np.asarray(of, dtype=np.float64).tobytes() for of in found)
    return {
        "samples": count,
        "most_mb_above_the_start": round((max(watch.seen) - before) / MB, 1),
        "seconds": round(time.monotonic() - begun, 1),
        "sha256": hashlib.sha256(numbers).hexdigest()[:16],
    }
