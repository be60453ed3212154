"""A plausible synthetic run folder: tables of made-up logits, strict mode's drawn at random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.pathways.effects import (
    controls_table,
    layers_table,
    pathways_table,
    probes_table,
)
from anchorscope.probes.probe_set import Readings
from anchorscope.run_folder.table_columns import FINDINGS, SPANS, STRICT
from anchorscope.run_folder.view import RunView
from anchorscope.show.claims import claims_of

SUBJECTS = ("Lyon", "Kyoto", "Quito", "Gdańsk", "Aleppo", "Perth", "Cusco", "Turku")
SHARES = {"knockout": 1.0, "question": 1.25, "answer-only": 1.4, "neutral": 0.12}

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
    signal: float = 1.4,
    question: str = "Which country is {} in?",
    answer: str = "It is in France, I think",
    empty: tuple[str, ...] = (),
) -> Path:
    """Write a run folder whose effects follow from made-up logits; return the folder.

    `signal` is how far the probes part right from wrong; datasets in `empty` have no sample that
    flips.
    """
    titles = dict(datasets or {"atlas": "Atlas", "popqa": "PopQA"})
    rng = np.random.default_rng(seed)
    samples, pathways = [], []
    tables: dict[str, list[pd.DataFrame]] = {
        name: [] for name in ("layers", "control_layers", "probes", "controls", "spans")
    }
    for name in titles:
        rows = _samples(name, n, rng, question, answer)
        samples.append(rows)
        usable = rows[(rows["verdict"] != "abstain") & rows["exact_answer"].map(len).gt(0)]
        readings = _readings(usable, layers, signal, rng, still=name in empty)
        of = {"model": model, "dataset": name}
        pathways.append(pathways_table(readings, dataset=name))
        tables["layers"].append(layers_table(pathways[-1], model=model, resamples=100))
        neutral = {**readings.logits, "knockout": readings.logits["neutral"]}
        control = pathways_table(replace(readings, logits=neutral), dataset=name)
        control = layers_table(control, model=model, resamples=100)
        tables["control_layers"].append(control.assign(intervention="neutral"))
        tables["probes"].append(probes_table(readings, **of, resamples=100))
        tables["controls"].append(controls_table(readings, **of))
        finders = {"finder_b": ["rules", "all"], "jaccard": [0.81, 0.34], "identical": [0.62, 0.05]}
        spans = pd.DataFrame({"dataset": name, "finder_a": "given", "n": n, **finders})
        tables["spans"].append(spans[list(SPANS)])
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    pd.concat(samples).to_parquet(folder / "samples.parquet", index=False)
    pd.concat(pathways).to_parquet(folder / "tables" / "pathways.parquet", index=False)
    for name, frames in tables.items():
        pd.concat(frames).to_csv(folder / "tables" / f"{name}.csv", index=False)
    _strict(folder, model, list(titles), layers)
    (folder / "run.json").write_text(json.dumps(_info(model, titles, n, layers)))
    return folder


def add_claims(folder: Path) -> RunView:
    """Write the claims table of a run folder; return the run."""
    claims_of([RunView.open(folder)]).to_csv(folder / "tables" / "claims.csv", index=False)
    return RunView.open(folder)


def _samples(name: str, n: int, rng: np.random.Generator, question: str, answer: str):
    rows = []
    for i in range(n):
        subject = SUBJECTS[i % len(SUBJECTS)]
        text = question.format(subject)
        verdict = str(rng.choice(["right", "wrong", "abstain"], p=[0.4, 0.52, 0.08]))
        found = bool(rng.random() > 0.03)
        at = max(answer.find("France"), 0)
        ends = [text.find(subject)] if subject in text else []
        rows.append(
            {
                "id": f"{name}:test:{i}", "dataset": name, "question": text,
                "answers": ["France", "French Republic"], "subjects": [subject],
                "relation": "country", "popularity": float(rng.integers(1000, 10**6)),
                "entity": subject, "answer": answer if found else "", "token_ids": [5, 6],
                "log_probs": [-0.1, -0.2], "first_entropy": 1.0, "finished": True,
                "verdict": verdict, "finder": "given" if i % 5 else "rules", "span_starts": ends,
                "span_stops": [start + len(subject) for start in ends],
                "answer_start": at if found else None,
                "answer_stop": at + len("France") if found else None,
                "prompt_ids": [1, 2, 3], "question_tokens": [1, 2], "exact_question": [2],
                "exact_answer": [4] if found else [], "kind": "name" if found else "none",
                "fold": i % 5,
            }
        )  # fmt: skip
    return pd.DataFrame(rows).astype(
        dict.fromkeys(("answer_start", "answer_stop", "fold"), "Int64")
    )


def _readings(
    usable: pd.DataFrame, layers: int, signal: float, rng: np.random.Generator, *, still: bool
) -> Readings:
    """Logits of probes that agree on most; two fifths of the samples depend on the question."""
    n = len(usable)
    z = (usable["verdict"] == "wrong").to_numpy().astype(int)
    depth = 0.0 if still else 1.25 * np.sin(np.pi * np.arange(1, layers + 1) / (layers + 2))
    clean = (signal * (z - 0.5))[:, None] + rng.normal(0, 1.6, (n, layers))
    clean = clean + rng.normal(0, 0.3, (3, n, layers))  # of paper, a and b
    lost = -np.sign(clean) * (abs(clean) + 0.9) * depth
    lost *= (np.arange(n) % 5 < 2)[:, None]
    jolts = rng.normal(0, 0 if still else 0.35, (len(SHARES), *clean.shape))
    cuts = {name: clean + share * lost + jolt
            for (name, share), jolt in zip(SHARES.items(), jolts, strict=True)}  # fmt: skip
    return Readings(
        ids=tuple(usable["id"]), z=z, fold=np.arange(n) % 5, probes=("paper", "a", "b"),
        logits={"clean": clean, **cuts},
    )  # fmt: skip


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
