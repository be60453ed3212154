"""The page on detectors says what the tables beside it hold."""

from __future__ import annotations

import pandas as pd
import pytest
from test_docs import ROOT

from anchorscope.detect.evaluate import to_markdown
from anchorscope.stats.intervals import ALPHA

FOLDER = ROOT / "docs" / "detection"
MODELS = ("qwen2.5-coder-1.5b", "smollm2-135m")
SHOWN = (
    "min-log-prob", "token-features", "tfidf-both", "question-only", "probe", "combined", "mop",
    "pr",
)  # fmt: skip
MEANS = ("min-log-prob", "token-features", "probe", "combined")


def page() -> str:
    return (ROOT / "docs" / "detection.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "better", "mop"), [(MODELS[0], 7, 0), (MODELS[1], 4, 1)])
def test_the_page_of_detectors_shows_what_their_tables_hold(model, better, mop) -> None:
    """Rows of AUROC, and how often `combined`, MoP and PR differ from the probe."""
    table = pd.read_csv(FOLDER / f"{model}-all.csv")
    rows = to_markdown(table[table["detector"].isin(SHOWN)]).split("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(SHOWN) and all(row in page() for row in rows)
    combined = table[table["detector"] == "combined"]
    assert (combined["vs_probe"] > 0).all() and (combined["vs_probe_p"] < ALPHA).sum() == better
    ours = table[table["detector"].isin(("mop", "pr")) & (table["vs_probe_p"] < ALPHA)]
    assert list(ours["detector"]) == ["mop"] * mop and (ours["vs_probe"] > 0).all()


def test_the_page_of_detectors_counts_how_they_hold_on_other_datasets() -> None:
    moved = pd.concat([pd.read_csv(FOLDER / f"{model}-all-transfer.csv") for model in MODELS])
    means = moved.groupby(["model", "kind", "detector"], sort=False)["auroc"].mean()
    for model in moved["model"].unique():
        for kind in ("within", "transfer", "left-out"):
            numbers = ", ".join(f"{means[model, kind, name]:.3f}" for name in MEANS)
            assert f"| {numbers} |" in page()
    moved = moved[(moved["kind"] == "transfer") & (moved["vs_best_p"] < ALPHA)]
    below = moved[moved["vs_best"] < 0]["detector"].value_counts()
    above = moved[moved["vs_best"] > 0]["detector"].value_counts()
    assert (below["probe"], below["combined"]) == (17, 4)
    assert "probe" not in above and above["combined"] == 1


@pytest.mark.parametrize("model", MODELS)
def test_the_page_of_detectors_says_what_a_peers_states_tell(model: str) -> None:
    table = pd.read_csv(FOLDER / f"{model}-peer.csv")
    rows = table[(table["position"] == "probe position") & (table["answers"] == "all")]
    ranges = [f"{rows[side].min():.3f} to {rows[side].max():.3f}" for side in ("of_peer", "own")]
    assert f"with {ranges[0]} where its own have {ranges[1]}" in " ".join(page().split())
    assert (rows["gap"] > 0).all()
    assert (rows["p"] < ALPHA).sum() == {"smollm2-135m": 1, "qwen2.5-coder-1.5b": 4}[model]
