"""Measure error rates, power and coverage of the finding on worlds with a known truth.

    python benchmarks/worlds.py --procs 15 --limit 700    # appends to runs/worlds.csv
    python benchmarks/worlds.py --states runs/demo        # laws planted on a run's clean states
    python benchmarks/worlds.py --table                   # docs/worlds.csv, method.md, findings.md

Worlds are judged in order of importance, and each is written to the file at once: the same command
continues where it was stopped.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # each world has one core

import argparse
import csv
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from error_rates import CONFIG, judge_states, judge_world
from on_real_states import RealStates, plant_law, real_states

from anchorscope.pathways.finding import FindingName
from anchorscope.pathways.power import WORLDS
from anchorscope.run_folder.view import RunView
from anchorscope.simulate.worlds import TRUE, Truth
from anchorscope.stats.intervals import rate

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FINDINGS: tuple[FindingName, ...] = get_args(FindingName)
LAYERS = 2
Setting = dict[str, Any]
DEFAULTS: Setting = {
    "states": "", "width": 32, "samples": 400, "strength": 4.0, "noise": 0.5, "mixture": 0.5,
    "belief": 1.5, "templates": 4, "missed": 0.3, "control": "jolt", "lost": 1.0,
}  # fmt: skip
KEYS = ("world", *DEFAULTS)
RESULTS = (
    "finding", "by", "gap", "low", "high", "same_gap", "paper_gap", "paper_holds", "power_half",
    "power_fifth", "reliability",
)  # fmt: skip
COLUMNS = (*KEYS, "planted", "seed", *RESULTS, "seconds")

SIZES = ((32, 400), (576, 1500), (576, 400), (32, 1500))
LARGE = ((1536, 1500), (32, 5000), (576, 5000))
NULLS: list[Setting] = [
    {"world": "one-mechanism"}, {"world": "noise"}, {"world": "no-effect"}, {"world": "shift"},
    {"world": "continuum"}, {"world": "skewed"}, {"world": "forgetting"}, {"world": "heavy-tails"},
    {"world": "coin-toss"}, {"world": "margin"}, {"world": "two-kinds"}, {"world": "interaction"},
    {"world": "popularity"}, {"world": "finder-misses"}, {"world": "blocks"},
    *({"world": "templates", "templates": count} for count in (2, 3, 8)),
]  # fmt: skip
PATHWAYS: list[Setting] = [
    {"world": "two-pathways"},
    {"world": "two-pathways", "strength": 5.0},
    {"world": "uneven-kinds"},
    {"world": "two-pathways", "belief": 0.4},
    {"world": "two-pathways", "mixture": 0.2},
    *({"world": "two-pathways", "control": name} for name in ("displaces", "surer", "breaks")),
    {"world": "one-way"},
    {"world": "unlabelled-kinds"},
]
INVENTED: list[Setting] = [  # after the rule was fixed
    {"world": "finder-by-kind"},
    {"world": "heavy-pushes"},
    *(
        {"world": world, "control": "unsure"}
        for world in ("one-mechanism", "shift", "two-pathways")
    ),
]
PARTS: list[Setting] = [  # shares of belief that half the samples lose, as in `anchorscope power`
    {"world": "to-the-prior", "belief": 2.5, "strength": part} for part in (0.6, 0.7, 0.8, 0.9)
]
LOSSES = {  # beliefs that half the samples lose, by the size of the run: hardly to always found
    (32, 400): (1.5, 2.0, 2.5, 1.0, 1.75, 3.0),
    (32, 1500): (1.5, 2.0, 1.25, 1.0, 2.5),
    (576, 1500): (1.5, 2.0, 1.25, 1.75, 1.0),
    (576, 400): (2.25, 2.5, 2.75, 2.0, 3.0),
}


def queue(seeds: range) -> Iterator[dict[str, Any]]:
    """Yield jobs, the most important first: every setting with one seed, then with the next."""

    def sized(settings: list[Setting], size: tuple[int, int], planted: int) -> list[Setting]:
        width, samples = size
        return [{**s, "width": width, "samples": samples, "planted": planted} for s in settings]

    def losses(size: tuple[int, int]) -> list[Setting]:
        return [{"world": "to-the-prior", "belief": belief} for belief in LOSSES[size]]

    first = [
        *(job for size in SIZES[:2] for job in sized(losses(size)[:3], size, WORLDS)),
        *(job for size in SIZES for job in sized(NULLS, size, 0)),
        *(job for size in SIZES for job in sized(PATHWAYS[:3], size, 0)),
    ]
    second = [
        *(job for size in SIZES[2:] for job in sized(losses(size)[:3], size, WORLDS)),
        *(job for size in SIZES[:2] for job in sized([*PATHWAYS[3:], *INVENTED], size, 0)),
        *sized(PARTS, SIZES[0], 0),
        *(job for size in SIZES for job in sized(losses(size)[3:], size, WORLDS)),
    ]
    third = [job for size in LARGE for job in sized([*NULLS, *PATHWAYS[:3]], size, 0)]
    for stage in (first, second, third):
        for seed in seeds:
            yield from ({**DEFAULTS, **job, "seed": seed} for job in stage)


LAWS: list[Setting] = [
    {"world": "one-law"},
    {"world": "two-pathways"},
    {"world": "two-pathways", "lost": 0.5},
    {"world": "two-pathways", "mixture": 0.2},
    {"world": "coin-toss"},
    {"world": "finder-misses"},
    {"world": "relation"},
    {"world": "popularity"},
    {"world": "length"},
    {"world": "interaction"},
]


def queue_on_states(folder: Path, seeds: range) -> Iterator[dict[str, Any]]:
    """Yield jobs that plant laws on the clean states of each dataset of a run."""
    for seed in seeds:
        for dataset in RunView.open(folder).datasets:
            name = f"{folder.resolve()}:{dataset}"
            samples, _, width = opened(name).states["clean"].shape
            for law in LAWS:
                size = {"states": name, "samples": samples, "width": width}
                yield {**DEFAULTS, **size, **law, "planted": WORLDS, "seed": seed}


@lru_cache(maxsize=2)
def opened(name: str) -> RealStates:
    """Read the states of 'folder:dataset', once in each process."""
    folder, _, dataset = name.rpartition(":")
    return real_states(RunView.open(Path(folder)), dataset)


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """Compute the finding of one world as a row of the file."""
    begun = time.process_time()
    # Without an estimate of the power, only the worlds that decide the finding are planted.
    worlds, seed = job["planted"] or None, job["seed"]
    if job["states"]:
        real = opened(job["states"])
        planted = {"share": job["mixture"], "lost": job["lost"], "missed": job["missed"]}
        states = plant_law(real, job["world"], **planted, seed=seed)
        config = replace(CONFIG, seed=seed)
        judged = judge_states(states, real.samples, config=config, worlds=worlds)
    else:
        truth = {key: job[key] for key in KEYS if key not in ("states", "lost")}
        judged = judge_world(Truth(layers=LAYERS, seed=seed, **truth), worlds=worlds)
    finding = judged.finding
    results = (
        finding.name, finding.by, *finding.gap[:3], finding.same_gap, judged.paper_gap.value,
        judged.paper_holds, finding.power["half"], finding.power["fifth"],
        finding.examined.reliability,
    )  # fmt: skip
    row = {**job, **dict(zip(RESULTS, results, strict=True))}
    return row | {"seconds": round(time.process_time() - begun, 2)}


def measure(jobs: Iterator[dict[str, Any]], raw: Path, *, procs: int, limit: float) -> None:
    """Judge the worlds that are not in the file yet, until the time limit."""
    done = set(map(identity, read(raw).to_dict("records"))) if raw.exists() else set()
    jobs = (job for job in jobs if identity(job) not in done)
    until, begun = time.monotonic() + limit, not raw.exists()
    raw.parent.mkdir(exist_ok=True, parents=True)
    with ProcessPoolExecutor(procs) as pool, raw.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        if begun:
            table.writeheader()
        running = {pool.submit(judge, job) for job in islice(jobs, procs)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                try:
                    table.writerow(future.result())
                    file.flush()
                except Exception as error:  # no world may end the others
                    print(repr(error), flush=True)
                if time.monotonic() < until and (following := next(jobs, None)) is not None:
                    running.add(pool.submit(judge, following))


def identity(row: dict[str, Any]) -> tuple[str, ...]:
    """The key that identifies a job."""
    numbers = (row[key] for key in (*KEYS, "planted", "seed"))
    return tuple(f"{value:g}" if isinstance(value, int | float) else value for value in numbers)


def read(raw: Path) -> pd.DataFrame:
    """Read the worlds that are judged so far; an incomplete row is left out."""
    rows = pd.read_csv(raw, on_bad_lines="skip", dtype={"states": str, "by": str})
    rows = rows[np.isfinite(pd.to_numeric(rows["seconds"], errors="coerce"))]
    return rows.fillna({"states": "", "by": ""})


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Tabulate each setting: rates of the findings, the gap and its coverage, the power."""
    return pd.DataFrame(
        [
            rate_row(dict(zip(KEYS, key, strict=True)), part)
            for key, part in rows.groupby(list(KEYS), sort=False, dropna=False)
        ]
    )


def rate_row(setting: Setting, part: pd.DataFrame) -> dict[str, Any]:
    """Summarise one setting over its seeds."""
    folder, _, dataset = str(setting["states"]).rpartition(":")
    setting["states"] = f"{Path(folder).name}:{dataset}" if folder else ""
    true = setting["world"] == "two-pathways" if folder else setting["world"] in TRUE
    two = rate(part["finding"] == "two-pathways")
    powered = part[part["planted"] > 0]
    return {
        **setting,
        "true": true,
        "seeds": len(part),
        **{name: int((part["finding"] == name).sum()) for name in FINDINGS},
        "by": counts(part.loc[part["finding"] == "explained", "by"]),
        "found": two.value,
        "found_low": two.low,
        "found_high": two.high,
        "printed_half": powered["power_half"].mean(),
        "printed_fifth": powered["power_fifth"].mean(),
        "paper_holds": (part["paper_holds"].astype(str) == "True").mean(),
        "paper_gap": part["paper_gap"].mean(),
        "same_gap": part["same_gap"].mean(),
        "gap": part["gap"].mean(),
        "covered": int(covered(part).sum()),
        "intervals": int(np.isfinite(part["low"]).sum()),
        "seconds": part["seconds"].mean(),
    }


def covered(part: pd.DataFrame) -> pd.Series:
    """Whether each interval of a setting contains the mean of its gaps."""
    middle = part["gap"].mean()
    return (part["low"] <= middle) & (middle <= part["high"])


def counts(names: pd.Series) -> str:
    """Count each name, the most frequent first, as text."""
    return "; ".join(f"{name} {count}" for name, count in names.value_counts().items())


def write_tables(raw: Path) -> None:
    """Write docs/worlds.csv, and its numbers into method.md and findings.md."""
    rows = read(raw)
    table = rates(rows)
    table.to_csv(DOCS / "worlds.csv", index=False, float_format="%.4g")
    errors = "".join(summary(rows, table))
    put(DOCS / "method.md", "errors", errors)
    put(DOCS / "findings.md", "errors", errors)
    put(DOCS / "method.md", "power", "".join(deciles(rows)))
    put(DOCS / "method.md", "others", "".join(others(table)))


def put(page: Path, name: str, text: str) -> None:
    """Replace the text between a page's two marks of this name."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {name} -->")
    after = rest.split(f"<!-- end of {name} -->")[1]
    whole = f"{before}<!-- {name} -->\n{text}<!-- end of {name} -->{after}"
    page.write_text(whole, encoding="utf-8")


def summary(rows: pd.DataFrame, table: pd.DataFrame) -> Iterator[str]:
    """Describe the errors of the rule in sentences."""
    null, true = table[~table["true"]], table[table["true"]]
    if len(null):
        worst = null.loc[(null["two-pathways"] / null["seeds"]).idxmax()]
        every = rate(np.arange(null["seeds"].sum()) < null["two-pathways"].sum())
        yield (
            f"In {null['seeds'].sum():,} simulated worlds without pathways ({len(null)} settings "
            f"of {null['seeds'].min()} to {null['seeds'].max()} seeds) the rule found two in "
            f"{null['two-pathways'].sum()} (95 % interval {every.low:.1%} to {every.high:.1%}; "
            f"within a setting at most {worst['two-pathways']} of {worst['seeds']}, which may be "
            f"up to {worst['found_high']:.0%}).\n"
        )
    yield (
        f"In {true['seeds'].sum():,} worlds with pathways it said `uniform` or `no-effect`, the "
        f"only findings under which the claim `fails`, in "
        f"{(true['uniform'] + true['no-effect']).sum()}, and `explained` in "
        f"{int(true['explained'].sum())}.\n"
    )
    for width, part in table[table["states"] == ""].groupby("width"):
        held, intervals = part["covered"].sum(), part["intervals"].sum()
        worst = part.loc[(part["covered"] / part["intervals"]).idxmin()]
        yield (
            f"At width {width} the 95 % interval of the gap held the mean gap of its kind of world "
            f"in {held / intervals:.0%} ({held:,} of {intervals:,}; at worst {worst['covered']} of "
            f"{worst['intervals']}, in *{worst['world']}* with {worst['samples']:,} samples).\n"
        )
    lost = rows[(rows["world"] == "to-the-prior") & (rows["planted"] > 0)]
    if len(lost):
        found = (lost["finding"] == "two-pathways").mean()
        yield (
            f"Where a half of the samples loses its belief ({len(lost):,} worlds), it printed a "
            f"power of {lost['power_half'].mean():.2f} on average and found {found:.2f}.\n"
        )


def others(table: pd.DataFrame) -> Iterator[str]:
    """Tabulate the findings of the other worlds, and of laws planted on real states."""

    def cell(setting: Setting) -> str:
        own = table[[all(row[key] == value for key, value in setting.items()) for row in every]]
        counted = {name: own[name].sum() for name in FINDINGS if own[name].any()}
        return ", ".join(f"`{name}` {count}" for name, count in counted.items()) or "not run"

    every = table.to_dict("records")
    simulated = {
        f"{width} wide, {samples:,} samples": {"states": "", "width": width, "samples": samples}
        for width, samples in SIZES[:2]
    }
    real = {f"on {name}": {"states": name} for name in table["states"].unique() if name}
    plain = {key: DEFAULTS[key] for key in ("strength", "mixture", "belief", "control", "lost")}
    for columns, settings in ((simulated, [*PATHWAYS[3:], *INVENTED]), (real, LAWS)):
        if not columns:
            continue
        yield f"| world | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}\n"
        for setting in settings:
            words = ", ".join(
                value if key == "world" else f"{key} {value}" for key, value in setting.items()
            )
            cells = (cell({**plain, **column, **setting}) for column in columns.values())
            yield f"| {words} | {' | '.join(cells)} |\n"
        yield "\n"


def deciles(rows: pd.DataFrame) -> Iterator[str]:
    """Tabulate printed power against the share found, where half the samples lose their belief."""
    lost = rows[(rows["world"] == "to-the-prior") & (rows["planted"] > 0)]
    tenth = (lost["power_half"] * 10 - 1e-9).clip(0, 9).astype(int)
    yield "| printed power | worlds | printed, mean | found | 95 % interval |\n"
    yield "| --- | --- | --- | --- | --- |\n"
    for number, part in lost.groupby(tenth):
        found = rate(part["finding"] == "two-pathways")
        yield (
            f"| {number / 10:.1f} to {(number + 1) / 10:.1f} | {len(part)} | "
            f"{part['power_half'].mean():.2f} | {found.value:.2f} | "
            f"{found.low:.2f} to {found.high:.2f} |\n"
        )


def main() -> None:
    """Parse the options, then judge worlds or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, default=ROOT / "runs" / "worlds.csv")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the first seed of this machine")
    parser.add_argument("--procs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--only", default="", help="such as world=noise,width=32")
    parser.add_argument("--states", type=Path, help="plant laws on this run's clean states")
    parser.add_argument("--table", action="store_true", help="write the pages' tables")
    options = parser.parse_args()
    if options.table:
        return write_tables(options.raw)
    only = dict(part.split("=") for part in options.only.split(",") if part)
    seeds = range(options.first, options.first + options.seeds)
    jobs = queue_on_states(options.states, seeds) if options.states else queue(seeds)
    chosen = (job for job in jobs if all(str(job[key]) == only[key] for key in only))
    measure(chosen, options.raw, procs=options.procs, limit=options.limit)


if __name__ == "__main__":
    main()
