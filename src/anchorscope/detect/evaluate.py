"""Evaluate detectors on held-out folds and on other datasets, and compare them in tables.

Folds give one row per answer, detector and split. Transfer trains on one dataset and tests on
another, or trains on all but one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from anchorscope.claims.table import detector_claims
from anchorscope.detect.kinds import AUTO, METHODS, fit_all, make_method
from anchorscope.detect.material import PEER, Material, from_run, join, with_peer
from anchorscope.detect.method import Method
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.probes.folds import SPLITS, Split, check_classes, outer_folds
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView
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

SCORES = (
    "dataset", "split", "detector", "fold", "id", "entity", "z", "score", "probability", "ms",
    "passes", "chosen",
)  # fmt: skip
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


class Trial(NamedTuple):
    """One training set and the test set held out from it."""

    train: Material
    held: Material
    split: str = "entity"
    fold: int = 0


def evaluate(
    parts: Sequence[Material],
    *,
    names: Sequence[str],
    splits: Sequence[Split] = SPLITS,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Score each answer with each detector, fitted on the folds without it.

    Each dataset is evaluated by itself; the folds of all are fitted in parallel.
    """
    progress = progress or Quiet()
    trials, usable = [], {}
    for part in parts:
        usable[part.name] = _usable(part, names, progress)
        for split in splits:
            fold = outer_folds(part.z, part.entities, split=split, folds=folds, seed=seed)
            # Inner folds of the same kind, so that detectors are chosen for this kind of split.
            own = replace(part, folds_by=split)
            for n in range(folds):
                trials.append(Trial(own.take(fold != n, seed=seed), own.take(fold == n), split, n))
    progress.start(f"detectors on {', '.join(usable)}", len(trials))
    frames = fit_and_score(trials, [usable[one.held.name] for one in trials], progress)
    return pd.concat(frames, ignore_index=True).reindex(columns=list(SCORES))


def _usable(material: Material, names: Sequence[str], progress: Progress) -> list[str]:
    """The names of detectors that can use the material; note those that cannot."""
    check_classes(material.z, dataset=material.name)
    usable = []
    for name in names:
        if reason := make_method(name).lacks(material):
            progress.note(f"{material.name}: {name} left out, {reason}")
        else:
            usable.append(name)
    if not usable:
        raise UserError(
            f"None of the detectors can be used on {material.name}: {reason}. Take others, or "
            "answers of `anchorscope detect collect`."
        )
    return usable


def fit_and_score(
    trials: Sequence[Trial], names: Sequence[Sequence[str]], progress: Progress
) -> list[pd.DataFrame]:
    """Fit detectors on each trial in parallel and score what it holds out: a frame per trial."""
    trained = in_parallel(
        lambda work: fit_all(work[0].train, work[1]),
        list(zip(trials, names, strict=True)),
        progress=lambda done, total: progress.advance(),
    )
    # Scored one trial at a time, so that others do not add to the milliseconds.
    return [
        pd.concat(
            [
                score_rows(one, name, trial.held)
                for name, one in fitted.items()
                if not one.lacks(trial.held)
            ],
            ignore_index=True,
        ).assign(split=trial.split, fold=trial.fold)
        for trial, fitted in zip(trials, trained, strict=True)
    ]


def score_rows(method: Method, name: str, held: Material) -> pd.DataFrame:
    """One row per held-out answer: score, probability, and the milliseconds it took."""
    method.decision_function(held)  # reads the states from disk, which is not to be timed
    begun = time.perf_counter()
    raw = method.decision_function(held)
    each = (time.perf_counter() - begun) * 1000 / max(1, len(held))
    if not np.isfinite(raw).all():
        raise UserError(
            f"The detector '{name}' gave {int((~np.isfinite(raw)).sum())} of {len(raw)} "
            "answers no finite score. Leave it out, or collect the states again."
        )
    passes, ms = method.cost(held)
    return pd.DataFrame(
        {
            "dataset": held.name,
            "detector": name,
            "id": held.ids,
            "z": held.z,
            "entity": held.entities,
            # Fits on different folds are put on one scale; a score without a fit has one already.
            "score": method.calibration_.evidence(raw) if method.learns else raw,
            "probability": method.calibration_.probability(raw),
            "ms": each + ms,
            "passes": passes,
            "chosen": method.chosen(),
        }
    )


def transfer_table(
    parts: Sequence[Material],
    *,
    model: str,
    names: Sequence[str],
    seed: int = 0,
    resamples: int = 2000,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Evaluate transfer between datasets: one row per detector, training set and test set.

    AUROC with its interval, ECE, and the paired difference from the best single baseline
    (`vs_best`; Holm's p over the detectors). `kind` is "transfer" (one dataset to another) or
    "left-out" (all others to this one).
    """
    if len(parts) < 2:
        raise UserError("Transfer needs two datasets at least. Give more runs of this model.")
    for part in parts:
        check_classes(part.z, dataset=part.name)
    progress = progress or Quiet()
    pairs = [("transfer", a, b) for a in parts for b in parts if a is not b]
    if len(parts) > 2:
        pairs += [("left-out", join([p for p in parts if p is not b]), b) for b in parts]
    progress.start("transfer", len(pairs))
    trials = [Trial(without_entities(train, held), held, kind) for kind, train, held in pairs]
    singles = {"best": [name for name in names if make_method(name).single]}
    rows, frames = [], fit_and_score(trials, [names] * len(trials), progress)
    for trial, scores in zip(trials, frames, strict=True):
        table = compare_detectors(scores, singles, seed=seed, resamples=resamples).assign(
            model=model, kind=trial.split, train=trial.train.name, test=trial.held.name,
            n_train=len(trial.train),
        )  # fmt: skip
        kept = [
            "model", "kind", "train", "test", "detector", "n_train", "n", "auroc", "auroc_low",
            "auroc_high", "ece", *(name for name in table if str(name).startswith("vs_best")),
        ]  # fmt: skip
        rows.append(table[kept])
    return pd.concat(rows, ignore_index=True)


def without_entities(train: Material, test: Material) -> Material:
    """The training answers without those about entities of the test set."""
    seen = {entity.casefold() for entity in test.entities}
    left = train.take(np.array([entity.casefold() not in seen for entity in train.entities]))
    check_classes(left.z, dataset=left.name)
    return left


# --- Tables ---


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


# --- The whole evaluation, on the runs of a model ---


@dataclass(frozen=True, kw_only=True)
class Study:
    """The tables of an evaluation: scores, detectors, and transfer."""

    scores: pd.DataFrame  # a row per answer, detector and split
    table: pd.DataFrame  # a row per dataset, split and detector
    transfer: pd.DataFrame | None = None

    @property
    def claims(self) -> pd.DataFrame:
        """The published claims about detectors, with a decision each."""
        return detector_claims(self.table)

    def write(self, folder: Path) -> list[Path]:
        """Write tables/: detectors.csv, detectors.md, detector_claims.csv, transfer.csv, scores."""
        tables = {"detectors": self.table}
        if len(self.claims):
            tables["detector_claims"] = self.claims
        if self.transfer is not None:
            tables["transfer"] = self.transfer
        scores = folder / "tables" / "detector_scores.parquet"
        return [*write_tables(folder, tables), write_atomic(scores, self.scores.to_parquet())]


def study(
    runs: Sequence[str | Path],
    *,
    peers: Sequence[str | Path] = (),
    names: Sequence[str] = (),
    transfer: bool = False,
    limit: int | None = None,
    folds: int = 5,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress | None = None,
    keep: Callable[[Study], object] = lambda found: None,
) -> Study:
    """Evaluate detectors on every dataset of these runs; all detectors if `names` is empty.

    With a `limit`, as many right as wrong answers of each dataset, `limit` in all at most.
    `peers` are runs of a second model over the same questions: its states are a control, and the
    questions that both answered are compared. The default of `resamples` grows with the number of
    detectors. `keep` is called with the results before transfer, which takes longest.
    """
    progress = progress or Quiet()
    names = tuple(names) or (*(name for name in METHODS if name != PEER), AUTO)
    names = tuple(dict.fromkeys((*names, *([PEER] if peers else []))))
    for name in names:
        make_method(name)  # a wrong name is an error before anything slow starts
    folders = _open(runs)
    model = folders[0].model_name
    parts = [from_run(f, name, seed=seed, limit=limit) for f in folders for name in f.datasets]
    datasets = [part.name for part in parts]
    if len(set(datasets)) < len(datasets):
        raise UserError(
            f"Two of the runs have the same dataset ({', '.join(datasets)}). Give each dataset "
            "once."
        )
    if peers:
        others = [from_run(f, name) for f in _open(peers) for name in f.datasets]
        parts = [with_peer(part, others) for part in parts]
    scores = evaluate(parts, names=names, folds=folds, seed=seed, progress=progress)
    table = detectors_table(scores, model=model, seed=seed, resamples=resamples)
    found = Study(scores=scores, table=table)
    if not transfer:
        return found
    keep(found)
    styles = {name: str(f.model.get("prompt")) for f in folders for name in f.datasets}
    if len(set(styles.values())) > 1:
        ways = ", ".join(f"{name} as {style}" for name, style in styles.items())
        progress.note(
            f"questions were asked in different ways ({ways}), and transfer holds that too; "
            "collect all of them with one --prompt"
        )
    names = [name for name in names if name != PEER]
    rows = transfer_table(parts, model=model, names=names, seed=seed, progress=progress)
    within: Any = table[(table["split"] == "entity") & (table["detector"] != PEER)]
    within = within[["model", "detector", "n", "auroc", "auroc_low", "auroc_high", "ece"]].assign(
        kind="within", train=within["dataset"], test=within["dataset"]
    )
    return replace(found, transfer=pd.concat([within, rows], ignore_index=True))


def _open(runs: Sequence[str | Path]) -> list[RunView]:
    """Open the run folders; a UserError if they are of different models."""
    folders = [RunView.open(run, collected_ok=True) for run in runs]
    if len({folder.weights for folder in folders}) > 1:
        raise UserError(
            "These runs are of different models, and the states of one mean nothing to the other. "
            "Evaluate each model by itself."
        )
    return folders
