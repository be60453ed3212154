"""The table of detectors: AUROC with intervals, paired differences, as CSV and Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from anchorscope.detect.kinds import AUTO, make_method
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
    prr,
)

RISKS = (0.05, 0.10)
RESAMPLES = 2000  # for intervals; comparisons may take more
_SPLITS = {"random": "folds at random", "entity": "folds disjoint by entity"}
_HEAD = {
    "title": "detector", "auroc": "AUROC", "auprc": "AUPRC", "prr": "PRR", "ece": "ECE",
    "brier": "Brier", "coverage_5": "cov. 5 %", "coverage_10": "cov. 10 %",
    "vs_probe": "vs probe", "vs_text": "vs text", "extra_passes": "passes", "ms_per_answer": "ms",
}  # fmt: skip
_NOTE = (
    "AUROC with its 95 % interval; in the first table * where it differs from the single probe's "
    f"(Holm's p below {ALPHA}). PRR: prediction-rejection ratio, 1 for the best order "
    "of answers and 0 for a random one. cov.: share of answers that can be given at that share of "
    "wrong ones. vs: difference of AUROC from the single probe and from the best text-only "
    "control, * likewise. passes: forward passes beside those that wrote the answer (a drawn "
    "answer takes one for each of its tokens); ms: for the score, and for drawn answers."
)


def detectors_table(
    scores: pd.DataFrame, *, model: str, seed: int = 0, resamples: int | None = None
) -> pd.DataFrame:
    """One row per dataset, split and detector, from the rows of `evaluate`.

    Each is compared with the probe, with `auto`, and with the best text control on these answers,
    which is harder to beat than one chosen beforehand.
    """
    names = list(dict.fromkeys(scores["detector"]))
    # With R resamples p is never below 2 / (R + 1), and Holm multiplies the smallest of m by m.
    least = math.ceil(round(5 * 2 * (len(names) - 1) / ALPHA, 6))
    resamples = max(RESAMPLES, least) if resamples is None else resamples
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
    reference, its interval and Holm's p. Entities are resampled where questions share them, the
    same for all detectors.
    """
    by_name = {
        str(name): cast(pd.DataFrame, rows.sort_values("id"))
        for name, rows in part.groupby("detector", sort=False)
    }
    same = {tuple(rows["id"]) for rows in by_name.values()}
    assert len(same) == 1, "every detector scores the same answers, or they cannot be paired"
    first = next(iter(by_name.values()))
    z, entity = first["z"].to_numpy(), first["entity"].to_numpy() if "entity" in first else None
    scores = {name: rows["score"].to_numpy(dtype=float) for name, rows in by_name.items()}
    value = {name: auroc(z, score) for name, score in scores.items()}
    drawn = auroc_draws(z, [*scores.values()], seed=seed, resamples=resamples, entity=entity)
    draws = dict(zip(scores, drawn, strict=True))
    rows = [_numbers(name, own, value[name], draws[name]) for name, own in by_name.items()]
    table = pd.DataFrame(rows)
    for reference, names in references.items():
        if not (names := [name for name in names if name in value]):
            continue
        other = max(names, key=lambda name: value[name])
        gaps = [paired_difference(value[n], value[other], draws[n] - draws[other]) for n in value]
        p = np.where([n == other for n in value], np.nan, [gap.p for gap in gaps])
        table = table.assign(
            **{
                f"vs_{reference}": [gap.value for gap in gaps],
                f"vs_{reference}_low": [gap.low for gap in gaps],
                f"vs_{reference}_high": [gap.high for gap in gaps],
                f"vs_{reference}_p": holm(p.tolist()),
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
        "prr": prr(z, score),
        "ece": ece(z, probability),
        "brier": brier(z, probability),
        **{f"coverage_{risk * 100:.0f}": coverage_at(z, score, risk) for risk in RISKS},
        "extra_passes": np.nan if name == AUTO else passes,
        "ms_per_answer": float(np.mean(rows["ms"].to_numpy())),
        "chosen": "; ".join(sorted(set(rows["chosen"]) - {""})),
    }


def write_tables(folder: Path, tables: dict[str, pd.DataFrame]) -> list[Path]:
    """Write each table as CSV under tables/, and `detectors` as Markdown too; return the paths."""
    texts = {f"{name}.csv": table.to_csv(index=False) for name, table in tables.items()}
    texts["detectors.md"] = to_markdown(tables["detectors"])
    return [write_atomic(folder / "tables" / name, text) for name, text in texts.items()]


def to_markdown(table: pd.DataFrame) -> str:
    """One Markdown table of AUROC over all datasets, then one for each dataset and split."""
    blocks = [_overview(table)]
    for dataset, split, rows in _parts(table):
        blocks.append(f"### {dataset}, {_SPLITS[split]}\n\n{_lines(_cells(rows))}")
    return "\n\n".join([*blocks, _NOTE]) + "\n"


def _overview(table: pd.DataFrame) -> str:
    """The Markdown table of AUROC with random folds / by entity, a column for each dataset."""
    datasets = list(dict.fromkeys(table["dataset"]))
    cells: dict[str, dict[str, str]] = {}
    for row in table.to_dict("records"):
        own = cells.setdefault(row["title"], dict.fromkeys(datasets, ""))
        area = f"{row['auroc']:.3f}{_star(row.get('vs_probe_p'))}"
        own[row["dataset"]] += f" / {area}" if own[row["dataset"]] else area
    lines = [[title, *(area or "–" for area in own.values())] for title, own in cells.items()]
    return _lines(pd.DataFrame(lines, columns=["AUROC, random / entity", *datasets]))


def _parts(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """The rows of each dataset and split, in the table's order."""
    groups: Any = table.groupby(["dataset", "split"], sort=False)
    return [(str(dataset), str(split), rows) for (dataset, split), rows in groups]


def _lines(cells: pd.DataFrame) -> str:
    rows = [list(cells.columns), ["---"] * cells.shape[1], *cells.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Format the rows as text, under the headings of the columns."""
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
        p = row[f"{column}_p"]
        return "–" if pd.isna(p) else f"{value:+.3f}{_star(p)}"
    if column.startswith("coverage"):
        return f"{value:.2f}"
    return f"{value:.0f}" if column == "extra_passes" else f"{value:.3f}"


def _star(p: float | None) -> str:
    return "*" if p is not None and p < ALPHA else ""
