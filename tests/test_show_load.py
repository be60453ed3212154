"""A run folder is read as it is, and what is not a finished run is refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit.show_fixture import make_run

from anchorscope.errors import UserError
from anchorscope.run_folder.view import RunView


def test_tables_are_read_with_their_columns(tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=3, n=30))
    assert run.model_name == "SmolLM2-135M-Instruct"
    assert run.titles == {"atlas": "Atlas", "popqa": "PopQA"}
    assert len(run.layers) == 2 * 3 * 2 * 2  # datasets, layers, modes, pathways
    assert len(run.probes) == 2 * 3
    assert len(run.controls) == 2 * 3 * 4
    assert len(run.samples) == 60
    assert set(run.pathways["pathway"]) == {"Q", "A"}


def test_files_are_read_only_when_asked_for(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", layers=2, n=20)
    (folder / "tables" / "spans.csv").unlink()
    run = RunView.open(folder)
    assert len(run.probes) == 4
    with pytest.raises(UserError, match=r"spans\.csv"):
        _ = run.spans


def test_a_dataset_called_na_keeps_its_name_and_an_empty_group_is_nan(tmp_path: Path) -> None:
    run = RunView.open(
        make_run(tmp_path / "run", datasets={"NA": "NA"}, layers=2, n=20, empty=("NA",))
    )
    assert set(run.layers["dataset"]) == set(run.spans["dataset"]) == {"NA"}
    row = run.layers.query("mode == 'paper' and pathway == 'Q'")
    assert (row["n"] == 0).all() and row["delta_p"].isna().all()


def test_what_is_not_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        RunView.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not a run folder"):
        RunView.open(tmp_path)
    (tmp_path / "run.json").write_text("{torn")
    with pytest.raises(UserError, match="damaged"):
        RunView.open(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"identity": {}, "finished": False}))
    with pytest.raises(UserError, match="not finished"):
        RunView.open(tmp_path)
    with pytest.raises(UserError, match="names no model"):
        RunView.open(tmp_path, unfinished_ok=True)
    folder = make_run(tmp_path / "run", layers=2, n=20)
    info = json.loads((folder / "run.json").read_text()) | {"finished": False}
    (folder / "run.json").write_text(json.dumps(info))
    assert RunView.open(folder, unfinished_ok=True).titles["atlas"] == "Atlas"


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", layers=2, n=20)
    file = folder / "tables" / "probes.csv"
    file.write_text(file.read_text().replace("auroc_low", "low"))
    with pytest.raises(UserError, match="auroc_low"):
        _ = RunView.open(folder).probes


def test_show_needs_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, anchorscope.show\n"
        "found = {'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "sys.exit(', '.join(found) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
