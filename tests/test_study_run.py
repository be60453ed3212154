"""A study run whole on tiny models: its tables, its page, a model that fails, and going on."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from kit.evidence_fixture import without_pictures
from kit.study_fixture import DATA, tiny_study

from anchorscope.pipeline.study.study import study
from anchorscope.run_folder.view import RunView

BROKEN = "no <script>alert(1) weights"


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a study whose second model has no weights."""
    folder = tmp_path_factory.mktemp("study")
    asked = tiny_study(folder, {"small": "llama", "large": "qwen3"})
    (folder / BROKEN).mkdir()
    shutil.copy(folder / "small/config.json", folder / BROKEN)
    small, large = asked.models
    models = (small, replace(small, name="broken", model=str(folder / BROKEN)), large)
    asked = replace(asked, models=models)
    with without_pictures("write_figures"):  # of the runs; the study draws its own
        return folder / "out", asked, study(asked, out=folder / "out")


def test_a_model_that_fails_does_not_stop_the_others(studied) -> None:
    out, _, result = studied
    assert list(result.runs) == ["small", "large"]
    assert list(result.errors) == ["broken"] and "could not be loaded" in result.errors["broken"]
    assert "Traceback" in (out / "errors" / "broken.txt").read_text()


def test_study_csv_has_a_row_for_each_model_and_dataset(studied) -> None:
    out, *_ = studied
    table = pd.read_csv(out / "study.csv")
    assert [*zip(table["model"], table["dataset"], strict=True)] == [
        (model, name) for model in ("small", "broken", "large") for name in DATA
    ]
    assert all("could not be loaded" in error for error in table.loc[2:3, "error"])
    for row in table[table["state"] == "finished"].to_dict("records"):
        view = RunView.open(out / row["folder"])
        (found,) = view.findings[view.findings["dataset"] == row["dataset"]].to_dict("records")
        assert (row["finding"], row["layer"], row["n"]) == (
            found["finding"], found["layer"], found["n"],
        )  # fmt: skip
        samples = view.samples[view.samples["dataset"] == row["dataset"]]
        assert row["right"] == (samples["verdict"] == "right").sum()
        probes = view.probes
        at = probes[(probes["dataset"] == row["dataset"]) & (probes["layer"] == row["layer"])]
        assert row["auroc"] == pytest.approx(at["auroc"].item())


def test_claims_compare_models_within_their_panel(studied) -> None:
    out, *_ = studied
    claims = pd.read_csv(out / "claims.csv")
    assert {"small", "large"} <= set(claims["model"])
    first = claims[claims["claim"] == "two-pathways"]
    assert len(first) == 4
    # Random verdicts: two pathways are shown of no model, so no claim about them is, of any model.
    assert set(claims["strict_decision"]) <= {"not shown", "not measured"}
    assert "holds" in set(claims["paper_decision"])


def test_costs_are_what_the_runs_recorded(studied) -> None:
    out, *_ = studied
    costs = pd.read_csv(out / "costs.csv").set_index("model")
    stages = RunView.open(out / "small").info["stages"]
    assert costs["seconds"]["small"] == pytest.approx(sum(s["seconds"] for s in stages.values()))
    assert costs["tokens"]["small"] == sum(s["tokens"] for s in stages.values())
    files = [out / "small" / name for name in RunView.open(out / "small").info["files"]]
    assert costs["disk"]["small"] == sum(file.stat().st_size for file in files)


def test_the_page_shows_the_panels_and_runs_no_script(studied) -> None:
    out, *_ = studied
    page = (out / "study.html").read_text(encoding="utf-8")
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert "<script" not in page
    assert "no &lt;script&gt;alert(1) weights" in page
    assert "Two &lt;tiny&gt; models" in page and "Tiny &amp; random" in page
    assert page.count('<img src="data:image/png;base64,') == 2  # paper mode, strict mode
    links = re.findall(r'href="([^"]+)"', page)
    reports = [f"{name}/report.html" for name in ("small", "large")]
    assert [link for link in links if link != "data:,"] == [r for r in reports for _ in DATA]
    assert all((out / report).is_file() for report in reports)
    stems = {file.stem for file in (out / "figures").iterdir()}
    assert stems == {"delta_p_Tiny-random", "delta_p_Tiny-random_strict"}


def test_the_same_call_goes_on(studied) -> None:
    """Finished runs are not done again; what failed is tried again, and its error is gone."""
    out, asked, _ = studied
    before = (out / "small" / "tables" / "layers.csv").stat().st_mtime_ns
    mended = replace(asked, models=tuple(m for m in asked.models if m.name != "broken"))
    disk = pd.read_csv(out / "costs.csv").set_index("model")["disk"]
    result = study(mended.with_options({"keep_states": "none"}), out=out)
    assert result.errors == {}
    assert not (out / "small" / "states").exists()
    costs = pd.read_csv(out / "costs.csv").set_index("model")
    assert costs["disk"]["small"] == disk["small"]  # what it took when it ran
    assert (out / "small" / "tables" / "layers.csv").stat().st_mtime_ns == before
    assert set(pd.read_csv(out / "study.csv")["state"]) == {"finished"}
