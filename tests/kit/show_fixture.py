"""A plausible synthetic run folder, with numbers from simulated logits and random draws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.run_folder.table_columns import FINDINGS, STRICT

SUBJECTS = ("Lyon", "Kyoto", "Quito", "Gdańsk", "Aleppo", "Perth", "Cusco", "Turku")
RATES = {"knockout": 1.0, "question": 1.25, "answer-only": 1.4, "neutral": 0.12}

NAMES = ("graded", "two-pathways", "explained")
NUMBERS = (
    "strict_within_gap_logit strict_within_null_logit_low strict_within_null_logit_high kappa_low "
    "kappa_high kappa_next kappa_next_low kappa_next_high knockout_auroc knockout_auroc_low "
    "knockout_auroc_high refit_auroc refit_auroc_low refit_auroc_high moved_norm "
    "moved_mahalanobis adds_gain adds_gain_low adds_gain_high answer_only_paper "
    "answer_only_paper_low answer_only_paper_high answer_only_strict answer_only_strict_low "
    "answer_only_strict_high"
)


def make_run(
    folder: Path,
    *,
    model: str = "SmolLM2-135M-Instruct",
    datasets: Mapping[str, str] | None = None,
    layers: int = 12,
    n: int = 160,
    seed: int = 0,
    strict: float = 0.6,
    auroc: float = 0.8,
    question: str = "Which country is {} in?",
    answer: str = "It is in France, I think",
    empty: tuple[str, ...] = (),
) -> Path:
    """Write a synthetic run folder; return the folder.

    `strict` scales how much of the effect a second probe confirms; datasets in `empty` have no
    sample that flips.
    """
    titles = dict(datasets or {"atlas": "Atlas", "popqa": "PopQA"})
    rng = np.random.default_rng(seed)
    samples, pathways = [], []
    tables = {n: [] for n in ("layers", "control_layers", "probes", "controls", "spans")}
    for name in titles:
        rows = _samples(name, n, rng, question, answer)
        samples.append(rows)
        usable = rows[(rows["verdict"] != "abstain") & rows["exact_answer"].map(len).gt(0)]
        for layer in range(1, layers + 1):
            depth = 0.0 if name in empty else np.sin(np.pi * layer / (layers + 2))
            for mode, size in (("paper", 1.0), ("strict", strict)):
                table = _logits(usable, layer, mode, depth, size, rng)
                pathways.append(table)
                tables["layers"] += _effects(table, model, name, layer, mode, rng)
                control = _logits(usable, layer, mode, 0.2 * depth, size, np.random.default_rng(9))
                tables["control_layers"] += [
                    {**row, "intervention": "neutral"}
                    for row in _effects(control, model, name, layer, mode, rng)
                ]
            tables["probes"].append(_probe(model, name, layer, layers, auroc, len(usable)))
            tables["controls"] += _controls(model, name, layer, depth, len(usable), rng)
        tables["spans"] += [
            {
                "dataset": name,
                "finder_a": "given",
                "finder_b": b,
                "n": n,
                "jaccard": j,
                "identical": i,
            }
            for b, j, i in (("rules", 0.81, 0.62), ("all", 0.34, 0.05))
        ]
    _write(folder, pd.concat(samples), pd.concat(pathways), tables)
    _strict(folder, model, list(titles), layers)
    (folder / "run.json").write_text(json.dumps(_info(model, titles, n, layers)))
    return folder


def _samples(name: str, n: int, rng: np.random.Generator, question: str, answer: str):
    rows = []
    for i in range(n):
        subject = SUBJECTS[i % len(SUBJECTS)]
        text = question.format(subject)
        verdict = str(rng.choice(["right", "wrong", "abstain"], p=[0.4, 0.52, 0.08]))
        found = bool(rng.random() > 0.03)
        at = max(answer.find("France"), 0)
        rows.append(
            {
                "id": f"{name}:test:{i}",
                "dataset": name,
                "question": text,
                "answers": ["France", "French Republic"],
                "subjects": [subject],
                "relation": "country",
                "popularity": float(rng.integers(1000, 10**6)),
                "entity": subject,
                "answer": answer if found else "",
                "token_ids": [5, 6],
                "log_probs": [-0.1, -0.2],
                "first_entropy": 1.0,
                "finished": True,
                "verdict": verdict,
                "finder": "given" if i % 5 else "rules",
                "span_starts": [text.find(subject)] if subject in text else [],
                "span_stops": [text.find(subject) + len(subject)] if subject in text else [],
                "answer_start": at if found else None,
                "answer_stop": at + len("France") if found else None,
                "prompt_ids": [1, 2, 3],
                "question_tokens": [1, 2],
                "exact_question": [2],
                "exact_answer": [4] if found else [],
                "kind": "name" if found else "none",
                "fold": i % 5,
            }
        )
    table = pd.DataFrame(rows)
    for column in ("answer_start", "answer_stop", "fold"):
        table[column] = table[column].astype("Int64")
    return table


def _logits(usable, layer: int, mode: str, depth: float, size: float, rng):
    n = len(usable)
    z = (usable["verdict"] == "wrong").to_numpy().astype(int)
    clean = (2 * z - 1) * 0.8 + rng.normal(0, 1.6, n)
    depends = (np.arange(n) % 5 < 2) & (depth > 0)  # two fifths depend on the question
    toward = np.sign(clean)
    shift = np.where(depends, -toward * (abs(clean) + 0.9) * depth * 1.25, 0) * size
    knocked = clean + shift + rng.normal(0, 0.35, n) * (depth > 0)
    flips = (clean > 0) != (knocked > 0) if mode == "paper" else depends
    return pd.DataFrame(
        {
            "id": usable["id"].to_numpy(),
            "dataset": usable["dataset"].to_numpy(),
            "layer": layer,
            "mode": mode,
            "z": z,
            "prediction": (clean > 0).astype(int),
            "logit_clean": clean,
            "logit_knockout": knocked,
            "pathway": np.where(flips, "Q", "A"),
        }
    )


def _effects(table, model: str, name: str, layer: int, mode: str, rng) -> list[dict]:
    sign = 2 * table["prediction"].to_numpy() - 1
    before, after = sign * table["logit_clean"], sign * table["logit_knockout"]
    points = 100 * (1 / (1 + np.exp(-after)) - 1 / (1 + np.exp(-before)))
    rows = []
    for pathway in ("Q", "A"):
        here = (table["pathway"] == pathway).to_numpy()
        row = {"model": model, "dataset": name, "layer": layer, "mode": mode, "pathway": pathway}
        row["n"] = int(here.sum())
        for column, values in (("delta_p", points), ("delta_logit", after - before)):
            row |= _interval(column, values[here].to_numpy(), rng)
        rows.append(row)
    return rows


def _interval(column: str, values: np.ndarray, rng) -> dict[str, float]:
    if not len(values):
        return {column: np.nan, f"{column}_low": np.nan, f"{column}_high": np.nan}
    means = values[rng.integers(0, len(values), (200, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {column: values.mean(), f"{column}_low": low, f"{column}_high": high}


def _probe(model: str, name: str, layer: int, layers: int, auroc: float, n: int) -> dict:
    value = 0.5 + (auroc - 0.5) * min(1, layer / layers * 1.6)
    return {
        "model": model,
        "dataset": name,
        "layer": layer,
        "auroc": value,
        "auroc_low": value - 0.04,
        "auroc_high": value + 0.04,
        "accuracy": value - 0.05,
        "n_train": n * 4 // 5,
        "n_test": n,
    }


def _controls(model: str, name: str, layer: int, depth: float, n: int, rng) -> list[dict]:
    rows = []
    for intervention, size in RATES.items():
        rate = 0.35 * depth * size
        rows.append(
            {
                "model": model,
                "dataset": name,
                "layer": layer,
                "intervention": intervention,
                "flip_rate": rate,
                "flip_rate_low": max(0, rate - 0.05),
                "flip_rate_high": rate + 0.05,
                "delta_p": -20 * depth * size + rng.normal(0, 0.6),
                "n": n,
            }
        )
    return rows


def _info(model: str, titles: Mapping[str, str], n: int, layers: int) -> dict:
    return {
        "config": {"model": "bundled", "limit": n, "where": "pre", "layers": "cumulative"},
        "command": "anchorscope run --data atlas,popqa --out runs/demo",
        "model": {
            "name": model,
            "blocks": layers,
            "width": 576,
            "dtype": "float32",
            "device": "cpu",
            "prompt": "text",
            "why": "no accelerator found",
        },
        "datasets": [
            {"name": k, "title": v, "questions": n, "dropped": {"duplicate": 3}}
            for k, v in titles.items()
        ],
        "versions": {"anchorscope": "0.1.0", "torch": "2.13.0"},
        "git": "abc1234",
        "stages": {"answers": {"seconds": 31.2, "tokens": 12345}, "probes": {"seconds": 4.1}},
        "finished": True,
    }


def _write(folder: Path, samples, pathways, tables) -> None:
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    samples.to_parquet(folder / "samples.parquet", index=False)
    pathways.to_parquet(folder / "tables" / "pathways.parquet", index=False)
    for name, rows in tables.items():
        pd.DataFrame(rows).to_csv(folder / "tables" / f"{name}.csv", index=False)


def _strict(folder: Path, model: str, titles: list[str], layers: int) -> None:
    """Write findings.csv (the findings of NAMES in turn) and strict.csv (random numbers)."""
    rng = np.random.default_rng(0)
    names = [*STRICT, *NUMBERS.split()]
    strict, findings = [], []
    for place, dataset in enumerate(titles):
        for layer in range(1, layers + 1):
            row = dict(zip(names, rng.normal(size=len(names)).tolist(), strict=True))
            row |= {"model": model, "dataset": dataset, "layer": layer}
            strict.append(row | {"n": 50, "collapse": False})
        numbers = list(FINDINGS)
        row = dict(zip(numbers, rng.uniform(size=len(numbers)).round(6).tolist(), strict=True))
        row |= {"model": model, "dataset": dataset, "by": "", "untested": ""}
        band = sorted({min(place + 1, layers), min(place + 2, layers)})
        row |= {"layer": band[0], "layers": " ".join(map(str, band)), "sets": 2, "n": 50}
        row |= {"why": f"reason {place}", "gap": -1.25 * place, "power_half": 0.9}
        row |= {"within": "both", "road": "shifts"}
        name = NAMES[place % len(NAMES)]
        findings.append(row | {"finding": name, "by": "kinds" if name == "explained" else ""})
    for name, rows in (("strict", strict), ("findings", findings)):
        pd.DataFrame(rows).to_csv(folder / "tables" / f"{name}.csv", index=False)
