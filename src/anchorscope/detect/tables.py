"""The table of detectors: AUROC with intervals, paired differences, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.detect.kinds import AUTO, make_method
from anchorscope.errors import UserError
from anchorscope.run_folder.disk import write_atomic
from anchorscope.stats.intervals import ALPHA, holm, percentile_interval
from anchorscope.stats.ranking import (
    auprc,
    auroc,
    auroc_draws,
    brier,
    coverage_at,
    ece,
    paired_difference,
)

RISKS = (0.05, 0.10)
RESAMPLES, LEAST_RESAMPLES = 2000, 100  # for intervals; comparisons may take more
_SPLITS = {"random": "folds at random", "entity": "folds disjoint by entity"}
_HEAD = {
    "title": "detector", "auroc": "AUROC", "auprc": "AUPRC", "ece": "ECE", "brier": "Brier",
    "coverage_5": "cov. 5 %", "coverage_10": "cov. 10 %", "vs_probe": "vs probe",
    "vs_text": "vs text", "extra_passes": "passes", "ms_per_answer": "ms",
}  # fmt: skip
_NOTE = (
    "AUROC with its 95 % interval; in the first table * where it differs from the single probe's "
    f"(Holm's p below {ALPHA}). cov.: share of answers that can be given at that share of "
    "wrong ones. vs: difference of AUROC from the single probe and from the best text-only "
    "control, * likewise; † where no resample was on the other side, so that p is as low as their "
    "number allows. passes: forward passes beside those that wrote the answer (a drawn "
    "answer takes one for each of its tokens); ms: for the score, and for drawn answers."
)


def enough_resamples(resamples: int | None, detectors: int) -> int:
    """How many resamples to draw; a UserError where too few are asked for to tell anything.

    Of R resamples p is never below 2 / (R + 1), and Holm's correction multiplies the smallest of m
    by m. The default takes that floor down to a fifth of ALPHA.
    """
    tests = max(0, detectors - 1)
    least = max(LEAST_RESAMPLES, math.floor(round(2 * tests / ALPHA, 6)))
    if resamples is None:
        return max(RESAMPLES, math.ceil(round(5 * 2 * tests / ALPHA, 6)))
    if resamples < least:
        raise UserError(
            f"--resamples is {resamples}. Accepted: {least} or more for {detectors} detectors, "
            "since Holm's correction leaves no p below 0.05 with fewer. Leave it out, or compare "
            "fewer detectors (--methods)."
        )
    return resamples


def detectors_table(
    scores: pd.DataFrame, *, model: str, seed: int = 0, resamples: int | None = None
) -> pd.DataFrame:
    """One row per dataset, split and detector, from the rows of `evaluate`.

    Each is compared with the probe, with `auto`, and with the best text control on these very
    answers, which is harder to beat than one chosen beforehand.
    """
    names = list(dict.fromkeys(scores["detector"]))
    resamples = enough_resamples(resamples, len(names))
    references = {name: [name] for name in ("probe", AUTO) if name in names}
    references["text"] = [name for name in names if make_method(name).text_only]
    frames = [
        compare_detectors(part, references, seed=seed, resamples=resamples)
        .assign(dataset=dataset, split=split)
        for dataset, split, part in _parts(scores)
    ]  # fmt: skip
    table = pd.concat(frames, ignore_index=True).assign(model=model, resamples=resamples)
    first = ["model", "dataset", "split", "detector", "title"]
    return cast(pd.DataFrame, table[first + [c for c in table.columns if c not in first]])


def compare_detectors(
    part: pd.DataFrame, references: Mapping[str, Sequence[str]], *, seed: int, resamples: int
) -> pd.DataFrame:
    """A row per detector, from the scores of one dataset and split.

    Columns vs_<reference>…: how much higher AUROC is than that of the best detector of the
    reference, its interval, Holm's p, and whether that is as low as the resamples allow: not one
    of them was on the other side. Entities are drawn where questions share them, the same for all.
    """
    by_name = {
        str(name): cast(pd.DataFrame, rows.sort_values("id"))
        for name, rows in part.groupby("detector", sort=False)
    }
    same = {tuple(rows["id"]) for rows in by_name.values()}
    assert len(same) == 1, "every detector scores the same answers, or they cannot be paired"
    first = next(iter(by_name.values()))
    value, draws = aurocs(
        first["z"].to_numpy(),
        {name: rows["score"].to_numpy(dtype=float) for name, rows in by_name.items()},
        entity=first["entity"].to_numpy() if "entity" in first else None,
        seed=seed,
        resamples=resamples,
    )
    rows = [_numbers(name, own, value[name], draws[name]) for name, own in by_name.items()]
    table = pd.DataFrame(rows)
    for reference, names in references.items():
        if not (names := [name for name in names if name in value]):
            continue
        other = max(names, key=lambda name: value[name])
        gaps = [paired_difference(value[n], value[other], draws[n] - draws[other]) for n in value]
        drawn = [np.isfinite(draws[n] - draws[other]).sum() for n in value]
        p = np.where([n == other for n in value], np.nan, [gap.p for gap in gaps])
        table = table.assign(
            **{
                f"vs_{reference}": [gap.value for gap in gaps],
                f"vs_{reference}_low": [gap.low for gap in gaps],
                f"vs_{reference}_high": [gap.high for gap in gaps],
                f"vs_{reference}_p": holm(p.tolist()),
                f"vs_{reference}_at_floor": np.isclose(p, 2 / (np.array(drawn) + 1)),
                f"vs_{reference}_is": other,
            }
        )
    return table


def _numbers(name: str, rows: pd.DataFrame, value: float, draws: np.ndarray) -> dict[str, Any]:
    z = rows["z"].to_numpy()
    probability = rows["probability"].to_numpy(dtype=float)
    score = rows["score"].to_numpy(dtype=float)
    estimate = percentile_interval(value, draws, len(z))
    method = make_method(name)
    passes = float(np.mean(rows["passes"])) if "passes" in rows else method.extra_passes
    return {
        "detector": name,
        "title": method.name,
        "n": len(z),
        "wrong": int(z.sum()),
        "auroc": value,
        "auroc_low": estimate.low,
        "auroc_high": estimate.high,
        "auprc": auprc(z, score),
        "ece": ece(z, probability),
        "brier": brier(z, probability),
        **{f"coverage_{risk * 100:.0f}": coverage_at(z, score, risk) for risk in RISKS},
        "extra_passes": np.nan if name == AUTO else passes,
        "ms_per_answer": float(np.mean(rows["ms"].to_numpy())),
        "chosen": "; ".join(sorted(set(rows["chosen"]) - {""})),
    }


def aurocs(
    z: np.ndarray,
    scores: Mapping[str, np.ndarray],
    *,
    entity: np.ndarray | None,
    seed: int,
    resamples: int,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """AUROC by name, and its values on the same resamples [resample] for all."""
    every = list(scores.values())
    drawn = auroc_draws(z, every, seed=seed, resamples=resamples, entity=entity)
    value = {name: auroc(z, score) for name, score in scores.items()}
    return value, dict(zip(scores, drawn, strict=True))


def write_tables(folder: Path, tables: dict[str, pd.DataFrame]) -> list[Path]:
    """The files written under tables/: each table as CSV, `detectors` as Markdown and LaTeX too."""
    texts = {f"{name}.csv": table.to_csv(index=False) for name, table in tables.items()}
    texts["detectors.md"] = to_markdown(tables["detectors"])
    texts["detectors.tex"] = to_latex(tables["detectors"])
    return [write_atomic(folder / "tables" / name, text) for name, text in texts.items()]


def to_markdown(table: pd.DataFrame) -> str:
    """One Markdown table of AUROC over all datasets, then one for each dataset and split."""
    blocks = [_overview(table)]
    for dataset, split, rows in _parts(table):
        blocks.append(f"### {dataset}, {_SPLITS[split]}\n\n{_lines(_cells(rows))}")
    return "\n\n".join([*blocks, _NOTE]) + "\n"


def _overview(table: pd.DataFrame) -> str:
    """AUROC with folds at random / disjoint by entity, a column for each dataset."""
    datasets = list(dict.fromkeys(table["dataset"]))
    lines = []
    groups: Any = table.groupby(["detector", "title"], sort=False)
    for (_, title), rows in groups:
        cells = [title]
        for dataset in datasets:
            own = rows[rows["dataset"] == dataset].set_index("split").to_dict("index")
            areas = [
                f"{own[split]['auroc']:.3f}{_star(own[split].get('vs_probe_p'))}"
                for split in _SPLITS
                if split in own
            ]
            cells.append(" / ".join(areas) or "–")
        lines.append(cells)
    return _lines(pd.DataFrame(lines, columns=["AUROC, random / entity", *datasets]))


def to_latex(table: pd.DataFrame) -> str:
    """A LaTeX tabular (booktabs) for each dataset and split."""
    blocks = []
    for dataset, split, rows in _parts(table):
        cells = _cells(rows)
        columns = "l" + "r" * (cells.shape[1] - 1)
        text = cells.to_latex(index=False, escape=True, column_format=columns)
        for sign, written in (("–", "--"), ("†", r"$^\dagger$"), ("β", r"$\beta$")):
            text = text.replace(sign, written)
        blocks.append(f"% {dataset}, {_SPLITS[split]}\n{text}")
    return "\n".join(blocks)


def _parts(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """The rows of each dataset and split, in the table's order."""
    groups: Any = table.groupby(["dataset", "split"], sort=False)
    return [(str(dataset), str(split), rows) for (dataset, split), rows in groups]


def _lines(cells: pd.DataFrame) -> str:
    rows = [list(cells.columns), ["---"] * cells.shape[1], *cells.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows as text, with the heads of the columns."""
    used = {column: head for column, head in _HEAD.items() if column in rows.columns}
    cells = [[_cell(row, column) for column in used] for row in rows.to_dict("records")]
    return pd.DataFrame(cells, columns=list(used.values()))


def _cell(row: dict[Any, Any], column: str) -> str:
    value = row[column]
    if column == "title":
        return str(value)
    if pd.isna(value):
        return "–"
    if column == "auroc":
        return f"{value:.3f} [{row['auroc_low']:.3f}, {row['auroc_high']:.3f}]"
    if column.startswith("vs_"):
        p, floor = row[f"{column}_p"], "†" if row.get(f"{column}_at_floor") else ""
        return "–" if pd.isna(p) else f"{value:+.3f}{_star(p)}{floor}"
    if column.startswith("coverage"):
        return f"{value:.2f}"
    return f"{value:.0f}" if column == "extra_passes" else f"{value:.3f}"


def _star(p: float | None) -> str:
    return "*" if p is not None and p < ALPHA else ""
