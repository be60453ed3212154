"""The page on detectors says what the tables beside it hold."""

from __future__ import annotations

import pandas as pd
import pytest
from test_docs import ROOT

from anchorscope.detect.tables import to_markdown
from anchorscope.stats.intervals import ALPHA


@pytest.mark.parametrize("model", ["qwen2.5-coder-1.5b", "smollm2-135m"])
def test_the_page_of_detectors_shows_what_their_tables_hold(model: str) -> None:
    """Rows of AUROC, and the counts of what beats what, against the CSV beside the page."""
    page = (ROOT / "docs" / "detection.md").read_text(encoding="utf-8")
    table = pd.read_csv(ROOT / "docs" / "detection" / f"{model}.csv")
    rows = to_markdown(table).split("\n\n")[0].splitlines()[2:]
    assert len(rows) == table["detector"].nunique()
    assert all(row in page for row in rows)
    combined = table[table["detector"] == "combined"]
    assert (combined["vs_probe"] > 0).all()


def test_the_page_of_detectors_counts_what_their_tables_hold() -> None:
    """The counts in its sentences: `combined` against the probe, and against the best baseline."""
    folder = ROOT / "docs" / "detection"
    models = ("qwen2.5-coder-1.5b", "smollm2-135m")
    own = pd.concat([pd.read_csv(folder / f"{model}.csv") for model in models])
    assert (own[own["detector"] == "combined"]["vs_probe_p"] < ALPHA).sum() == 9
    moved = pd.concat([pd.read_csv(folder / f"{model}-transfer.csv") for model in models])
    moved = moved[(moved["kind"] == "transfer") & (moved["vs_best_p"] < ALPHA)]
    below = moved[moved["vs_best"] < 0]["detector"].value_counts()
    above = moved[moved["vs_best"] > 0]["detector"].value_counts()
    named = ("probe", "combined", "token-features")
    assert [below[name] for name in named] == [19, 6, 1]
    assert "probe" not in above and above["combined"] == 2


SHOWN = ("probe", "mop", "pr", "p-true", "length")


@pytest.mark.parametrize(
    ("model", "worse", "below", "mean"),
    [
        ("smollm2-135m", 0, 3, 0.786),
        ("qwen2.5-coder-1.5b", 1, 2, 0.847),
    ],
)
def test_the_page_of_detectors_says_what_all_detectors_showed(
    model: str, worse: int, below: int, mean: float
) -> None:
    """Rows, how often MoP and PR differ from the probe, and how `combined` travels."""
    folder = ROOT / "docs" / "detection"
    page = (folder.parent / "detection.md").read_text(encoding="utf-8")
    table = pd.read_csv(folder / f"{model}-all.csv")
    rows = to_markdown(table[table["detector"].isin(SHOWN)]).split("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(SHOWN) and all(row in page for row in rows)
    ours = table[table["detector"].isin(("mop", "pr")) & (table["vs_probe_p"] < ALPHA)]
    assert len(ours) == worse and (ours["vs_probe"] < 0).all()
    moved = pd.read_csv(folder / f"{model}-all-transfer.csv")
    moved = moved[moved["kind"] == "transfer"]
    low = moved[(moved["vs_best_p"] < ALPHA) & (moved["vs_best"] < 0)]["detector"].value_counts()
    assert low.get("combined", 0) == below
    assert moved.groupby("detector")["auroc"].mean().round(3)["combined"] == mean


@pytest.mark.parametrize("model", ["smollm2-135m", "qwen2.5-coder-1.5b"])
def test_the_page_of_detectors_says_what_a_peers_states_tell(model: str) -> None:
    page = " ".join((ROOT / "docs" / "detection.md").read_text(encoding="utf-8").split())
    table = pd.read_csv(ROOT / "docs" / "detection" / f"{model}-peer.csv")
    rows = table[(table["position"] == "probe position") & (table["answers"] == "all")]
    ranges = [f"{rows[side].min():.3f} to {rows[side].max():.3f}" for side in ("of_peer", "own")]
    assert f"with {ranges[0]} where its own have {ranges[1]}" in page
    assert (rows["gap"] > 0).all()
    assert (rows["p"] < ALPHA).sum() == {"smollm2-135m": 1, "qwen2.5-coder-1.5b": 4}[model]
