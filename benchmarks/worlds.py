"""Error rates, power and coverage of the finding on simulated and semi-synthetic worlds.

    python benchmarks/worlds.py --seeds 100 --procs 16 --limit 1500
    python benchmarks/worlds.py --states runs/demo --seeds 20      # laws planted on real states
    python benchmarks/worlds.py --page                             # docs/worlds.csv, docs/method.md

Every world is a line of runs/worlds.jsonl as soon as it is judged: the same command goes on where
it was stopped. The page's table takes settings from that file, and from docs/worlds.csv those that
it lacks. At width 32 a world of 400 samples takes 1 s of one core, and 10 s more for the worlds
that are planted in it; with `--planted 0` only those that decide the finding are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from anchorscope.errors import UserError
from anchorscope.pathways.finding import FindingName
from anchorscope.run_folder.view import RunView
from anchorscope.simulate.error_rates import CONFIG, Judged, judge_states, judge_world
from anchorscope.simulate.on_real_states import RealStates, plant_law, real_states
from anchorscope.simulate.worlds import TRUE, Truth
from anchorscope.stats.intervals import rate

ROOT = Path(__file__).parents[1]
DOCS, RAW = ROOT / "docs", ROOT / "runs" / "worlds.jsonl"
FINDINGS: tuple[FindingName, ...] = get_args(FindingName)
LAYERS = 2
PLANTED = 10  # worlds planted for each share in one of at most 1,500 samples; more take too long
NARROW = [
    {"world": "two-pathways"},
    {"world": "two-pathways", "noise": 1.0},
    {"world": "two-pathways", "mixture": 0.2},
    {"world": "two-pathways", "control": "displaces"},
    {"world": "two-pathways", "control": "surer"},
    {"world": "two-pathways", "control": "breaks"},
    {"world": "two-pathways", "belief": 0.4},
    {"world": "to-the-prior"},
    {"world": "to-the-prior", "belief": 2.5},
    {"world": "one-way"},
    {"world": "uneven-kinds"},
    {"world": "unlabelled-kinds"},
    {"world": "one-mechanism"},
    {"world": "noise"},
    {"world": "no-effect"},
    {"world": "shift"},
    {"world": "shift", "strength": 1.0},
    {"world": "continuum"},
    {"world": "skewed"},
    {"world": "forgetting"},
    {"world": "heavy-tails"},
    {"world": "coin-toss"},
    {"world": "margin"},
    {"world": "templates", "templates": 2},
    {"world": "templates", "templates": 3},
    {"world": "templates", "templates": 8},
    {"world": "two-kinds"},
    {"world": "interaction"},
    {"world": "popularity"},
    {"world": "finder-misses"},
    {"world": "finder-misses", "missed": 0.5},
    {"world": "blocks"},
]
WIDE = [
    {"world": world}
    for world in (
        "two-pathways", "to-the-prior", "uneven-kinds", "one-mechanism", "noise", "continuum",
        "forgetting", "coin-toss", "margin", "two-kinds", "interaction", "finder-misses",
    )
]  # fmt: skip
SETTINGS = [
    {**setting, "width": width, "samples": n}
    for width, n, some in (
        (32, 400, NARROW),
        (32, 1500, NARROW),
        (576, 400, WIDE),
        (576, 1500, WIDE),
        (1536, 400, WIDE),
        (1536, 1500, WIDE),
        (32, 5000, WIDE),
        (576, 5000, WIDE),
        (1536, 5000, WIDE),
    )
    for setting in some
]
ON_STATES = [
    {"world": "one-law"},
    {"world": "two-pathways"},
    {"world": "two-pathways", "lost": 0.5},
    {"world": "two-pathways", "mixture": 0.2},
    {"world": "coin-toss"},
    {"world": "finder-misses", "missed": 0.3},
    {"world": "relation"},
    {"world": "popularity"},
    {"world": "length"},
    {"world": "interaction"},
]
DEFAULTS: dict[str, Any] = {
    "states": "", "width": 32, "samples": 400, "strength": 4.0, "noise": 0.5, "mixture": 0.5,
    "belief": 1.5, "templates": 4, "missed": 0.3, "control": "jolt", "lost": 1.0,
}  # fmt: skip
KEYS = ("world", *DEFAULTS)
Job = tuple[dict[str, Any], int]


def judge(job: Job, planted: int) -> dict[str, Any]:
    """The finding of one world, as a line of the file."""
    setting, seed = job
    begun = time.process_time()
    worlds = (planted or None) if setting["samples"] <= 1500 else 0
    if setting["states"]:
        found = judge_on_states(setting, seed, worlds)
    else:
        planted_truth = {k: v for k, v in setting.items() if k not in ("states", "lost")}
        found = judge_world(Truth(layers=LAYERS, seed=seed, **planted_truth), worlds=worlds)
    return {**setting, "seed": seed, **facts(found), "seconds": time.process_time() - begun}


def judge_on_states(setting: dict[str, Any], seed: int, worlds: int | None) -> Judged:
    """The finding of a law planted on a run's clean states."""
    real = opened(setting["states"])
    states = plant_law(
        real, setting["world"], share=setting["mixture"], lost=setting["lost"],
        missed=setting["missed"], seed=seed,
    )  # fmt: skip
    return judge_states(states, real.samples, config=replace(CONFIG, seed=seed), worlds=worlds)


@lru_cache(maxsize=2)
def opened(name: str) -> RealStates:
    """The states of 'folder:dataset', read once in each process."""
    folder, _, dataset = name.rpartition(":")
    return real_states(RunView.open(Path(folder)), dataset)


def facts(judged: Judged) -> dict[str, Any]:
    """What is kept of a world."""
    finding = judged.finding
    return {
        "finding": finding.name, "by": finding.by, "gap": finding.gap.value,
        "low": finding.gap.low, "high": finding.gap.high, "same_gap": finding.same_gap,
        "paper_gap": judged.paper_gap.value, "paper_holds": judged.paper_holds,
        "power_half": finding.power["half"], "power_fifth": finding.power["fifth"],
        "reliability": finding.examined.reliability,
    }  # fmt: skip


def measure(settings: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Judge every world that the file lacks, seed by seed, until the time is up."""
    known = {(*(row[key] for key in KEYS), row["seed"]) for row in raw_rows()}
    full = [{"world": setting["world"], **DEFAULTS, **setting} for setting in settings]
    jobs = iter(
        (setting, seed)
        for seed in range(options.seeds)
        for setting in full
        if (*(setting[key] for key in KEYS), seed) not in known
    )
    until = time.monotonic() + options.limit
    RAW.parent.mkdir(exist_ok=True)
    work = partial(judge, planted=options.planted)
    with ProcessPoolExecutor(options.procs) as pool, RAW.open("a", encoding="utf-8") as file:
        running = {pool.submit(work, job): job for job in islice(jobs, options.procs)}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job = running.pop(future)
                try:
                    file.write(json.dumps(future.result()) + "\n")
                    file.flush()
                except UserError as error:  # a law that these samples cannot follow
                    print(f"{job[0]['world']}, seed {job[1]}: {error}", flush=True)
                if time.monotonic() < until and (following := next(jobs, None)) is not None:
                    running[pool.submit(work, following)] = following


def raw_rows() -> list[dict[str, Any]]:
    """The worlds that were judged so far."""
    if not RAW.is_file():
        return []
    return [json.loads(line) for line in RAW.read_text(encoding="utf-8").splitlines()]


def summary() -> pd.DataFrame:
    """One row for each setting: rates of the findings, the gap, its coverage, and the power."""
    rows = pd.DataFrame(raw_rows())
    return pd.DataFrame(
        [summary_row(key, part) for key, part in rows.groupby(list(KEYS), sort=False, dropna=False)]
    )


def summary_row(key: tuple, part: pd.DataFrame) -> dict[str, Any]:
    """One setting over its seeds."""
    setting = dict(zip(KEYS, key, strict=True))
    # The folder is of no use to a reader, and its name is.
    folder, _, dataset = str(setting["states"]).rpartition(":")
    setting["states"] = f"{Path(folder).name}:{dataset}" if folder else ""
    real = bool(setting["states"])
    true = setting["world"] == "two-pathways" if real else setting["world"] in TRUE
    two = rate(part["finding"] == "two-pathways")
    gap = part["gap"].mean()
    known = part[np.isfinite(part["low"])]
    return {
        **setting,
        "true": true,
        "seeds": len(part),
        **{name: (part["finding"] == name).mean() for name in FINDINGS},
        "findings": counts(part["finding"]),
        "by": counts(part.loc[part["finding"] == "explained", "by"]),
        "strict_holds": two.value,
        "strict_holds_low": two.low,
        "strict_holds_high": two.high,
        "paper_holds": part["paper_holds"].mean(),
        "paper_gap": part["paper_gap"].mean(),
        "same_gap": part["same_gap"].mean(),
        "strict_gap": gap,
        "coverage": ((known["low"] <= gap) & (gap <= known["high"])).mean(),
        "power_half": part["power_half"].mean(),
        "power_fifth": part["power_fifth"].mean(),
        "seconds": part["seconds"].mean(),
    }


def counts(names: pd.Series) -> str:
    """How often each name is there, the commonest first."""
    return "; ".join(f"{name} {count}" for name, count in names.value_counts().items())


def page() -> None:
    """docs/worlds.csv, and the table between the marks of docs/method.md."""
    table = pd.read_csv(DOCS / "worlds.csv", dtype={"states": str, "by": str})
    table = table.fillna({"states": "", "by": ""})
    if raw_rows():
        table = pd.concat([summary(), table]).drop_duplicates(list(KEYS))
    table.to_csv(DOCS / "worlds.csv", index=False, float_format="%.4g")
    path, (start, stop) = DOCS / "method.md", ("<!-- rates -->", "<!-- end of rates -->")
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(start)
    made = f"{before}{start}\n{''.join(markdown(table))}{stop}{rest.split(stop)[1]}"
    path.write_text(made, encoding="utf-8")


def markdown(table: pd.DataFrame) -> Iterator[str]:
    """One line of Markdown for each planted truth, one column for each number of samples."""
    table = table.assign(
        planted=[
            ", ".join(f"{k} {row[k]:g}" if k != "control" else f"control {row[k]}"
                      for k in KEYS[4:] if row[k] != DEFAULTS[k])
            for row in table.to_dict("records")
        ],
        read=[row["states"] or f"width {row['width']}" for row in table.to_dict("records")],
    )  # fmt: skip
    sizes = list(dict.fromkeys(zip(table["read"], table["samples"], strict=True)))
    head = ["world", "planted", *(f"{read}, n {n:,}" for read, n in sizes)]
    yield f"| {' | '.join(head)} |\n| {' | '.join(['---'] * len(head))} |\n"
    for (true, world, planted), part in table.groupby(["true", "world", "planted"], sort=False):
        by_size = {(row["read"], row["samples"]): row for row in part.to_dict("records")}
        cells = [_cell(by_size[size]) if size in by_size else "" for size in sizes]
        yield f"| {f'**{world}**' if true else world} | {planted} | {' | '.join(cells)} |\n"


def _cell(row: dict[str, Any]) -> str:
    """How many of the worlds ended in which finding, and what explained them."""
    by = f" (by {row['by']})" if row["by"] else ""
    return f"{row['findings']}{by}"


def main() -> None:
    """Which worlds, from how many seeds, on how many cores, for how long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--procs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--planted", type=int, default=PLANTED, help="worlds for each power")
    parser.add_argument("--worlds", default="", help="only these, joined by commas")
    parser.add_argument("--widths", default="", help="only these, joined by commas")
    parser.add_argument("--samples", default="", help="only these numbers, joined by commas")
    parser.add_argument("--states", type=Path, help="plant laws on this run's clean states")
    parser.add_argument("--page", action="store_true", help="write docs/worlds.csv and the page")
    options = parser.parse_args()
    if options.page:
        return page()
    settings = SETTINGS
    if options.states is not None:
        view = RunView.open(options.states)
        settings = [
            {
                **setting,
                "states": f"{options.states.resolve()}:{name}",
                "samples": len(opened(f"{options.states.resolve()}:{name}").z),
                "width": opened(f"{options.states.resolve()}:{name}").states["clean"].shape[2],
            }
            for name in view.datasets
            for setting in ON_STATES
        ]
    for option, key in (("worlds", "world"), ("widths", "width"), ("samples", "samples")):
        if only := [part.strip() for part in getattr(options, option).split(",") if part.strip()]:
            settings = [setting for setting in settings if str(setting[key]) in only]
    measure(settings, options)
    print(summary().to_string(max_colwidth=30))


if __name__ == "__main__":
    main()
