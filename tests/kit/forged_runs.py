"""Forge run folders: every checksum is valid, and the content makes no sense."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Change = Callable[[pd.DataFrame], pd.DataFrame]


def vouch_for(run: Path, *names: str) -> None:
    """Update the checksums of these files in their markers and in run.json."""
    info = json.loads((run / "run.json").read_text())
    for name in names:
        data = (run / name).read_bytes()
        entry = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (run / "markers" / f"{name}.json").write_text(json.dumps(entry))
        info["files"][name] = f"{entry['bytes']} {entry['sha256']}"
    write_info(run, info)


def write_info(run: Path, info: dict[str, Any]) -> None:
    """Write run.json without a checksum, as a person who edits it may."""
    info.pop("checksum", None)
    (run / "run.json").write_text(json.dumps(info))


def _table(name: str, change: Change) -> Callable[[Path], None]:
    """A forgery that changes a table."""

    def forge(run: Path) -> None:
        file = run / name
        if file.suffix == ".csv":
            change(pd.read_csv(file)).to_csv(file, index=False)
        else:
            change(pd.read_parquet(file)).to_parquet(file)
        vouch_for(run, name)

    return forge


def _cells(name: str, column: str, value: object, *, row: int | None = 0) -> Callable[[Path], None]:
    """A forgery that sets one cell of a column, or all of them with `row=None`."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        cells = list(table[column].astype(object))
        for at in range(len(cells)) if row is None else [row]:
            cells[at] = value
        return table.assign(**{column: cells})

    return _table(name, change)


def _info(**changes: Any) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        write_info(run, json.loads((run / "run.json").read_text()) | changes)

    return forge


def _doubled(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table, table.head(2)], ignore_index=True)


def _empty(table: pd.DataFrame) -> pd.DataFrame:
    return table.head(0)


def _without(*columns: str) -> Change:
    return lambda table: table.drop(columns=list(columns))


SAMPLES, LAYERS, PROBES = "samples.parquet", "tables/layers.csv", "tables/probes.csv"
CONTROLS, PATHWAYS, STRICT = "tables/controls.csv", "tables/pathways.parquet", "tables/strict.csv"
FINDINGS, CLAIMS, SPANS = "tables/findings.csv", "tables/claims.csv", "tables/spans.csv"
FORGERIES: dict[str, Callable[[Path], None]] = {
    # samples.parquet
    "samples: ids doubled": _table(SAMPLES, _doubled),
    "samples: empty": _table(SAMPLES, _empty),
    "samples: a dataset that run.json lacks": _cells(SAMPLES, "dataset", "elsewhere"),
    "samples: a verdict of another word": _cells(SAMPLES, "verdict", "perhaps"),
    "samples: a token id above 2^32": _cells(SAMPLES, "token_ids", [2**40]),
    "samples: tokens are words": _cells(SAMPLES, "token_ids", ["a"], row=None),
    "samples: a span without its end": _table(
        SAMPLES, lambda t: t.assign(answer_start=1.0, answer_stop=np.nan)
    ),
    "samples: a span below 0": _cells(SAMPLES, "span_starts", [-3]),
    "samples: more starts than stops": _cells(SAMPLES, "span_starts", [0, 1, 2]),
    "samples: positions beyond the tokens": _cells(SAMPLES, "exact_question", [10**7], row=None),
    "samples: positions are text": _cells(SAMPLES, "exact_answer", "abc", row=None),
    "samples: no text of the question": _cells(SAMPLES, "question", None),
    "samples: an entity that is a list": _cells(SAMPLES, "entity", ["a", "b"], row=None),
    "samples: column verdict is missing": _table(SAMPLES, _without("verdict")),
    # tables
    "layers: layer -1": _cells(LAYERS, "layer", -1),
    "layers: layer 1.5": _cells(LAYERS, "layer", 1.5),
    "layers: a dataset that samples lacks": _cells(LAYERS, "dataset", "elsewhere", row=None),
    "layers: a mode of another word": _cells(LAYERS, "mode", "loose"),
    "layers: a pathway of another word": _cells(LAYERS, "pathway", "B"),
    "layers: ΔP is infinite": _cells(LAYERS, "delta_p", float("inf"), row=None),
    "layers: n is text": _cells(LAYERS, "n", "many"),
    "layers: empty": _table(LAYERS, _empty),
    "layers: half of the rows": _table(LAYERS, lambda t: t.iloc[::3]),
    "layers: column n is missing": _table(LAYERS, _without("n")),
    "probes: empty": _table(PROBES, _empty),
    "controls: empty": _table(CONTROLS, _empty),
    "pathways: ids that samples lacks": _cells(PATHWAYS, "id", "nowhere", row=None),
    "pathways: layer 10^6": _cells(PATHWAYS, "layer", 10**6),
    "pathways: logits are NaN": _cells(PATHWAYS, "logit_clean", float("nan"), row=None),
    "pathways: a prediction of 5": _cells(PATHWAYS, "prediction", 5, row=None),
    "pathways: empty": _table(PATHWAYS, _empty),
    "strict: empty": _table(STRICT, _empty),
    "findings: a finding of another word": _cells(FINDINGS, "finding", "surely"),
    "findings: the band is text": _cells(FINDINGS, "layers", "low"),
    "findings: the band goes to 10^9": _cells(FINDINGS, "layers", f"1 {10**9}"),
    "findings: column layer is missing": _table(FINDINGS, _without("layer")),
    "findings: layer -1": _cells(FINDINGS, "layer", -1),
    "findings: a dataset that run.json lacks": _cells(FINDINGS, "dataset", "elsewhere"),
    "findings: the p-value is text": _cells(FINDINGS, "effect_p", "x", row=None),
    "claims: a decision of another word": _cells(CLAIMS, "paper_decision", "surely", row=None),
    "claims: empty": _table(CLAIMS, _empty),
    "spans: overlap is text": _cells(SPANS, "jaccard", "x", row=None),
    # run.json
    "run.json: another dataset": _info(datasets=[{"name": "elsewhere", "title": "Elsewhere"}]),
    "run.json: a dataset twice": _info(datasets=[{"name": "half"}, {"name": "half"}]),
    "run.json: blocks are text": _info(model={"name": "tiny", "blocks": "four", "width": []}),
    "run.json: a config of another kind": _info(config={"folds": "many", "delta": 3, "keys": []}),
    "run.json: files are a number": _info(files=7),
    "run.json: versions and stages are lists": _info(versions=[1], stages=[2]),
    "run.json: dropped and questions are text": _info(
        datasets=[{"name": "half", "questions": "many", "dropped": ["x"]}]
    ),
}


def forged(run: Path, name: str, out: Path) -> Path:
    """Copy a run and apply the named forgery."""
    shutil.copytree(run, out)
    FORGERIES[name](out)
    return out
