"""The notebooks: their outputs are clean, and all of their code runs.

`make tutorial` runs the first one with the bundled model; `.ci/run` does so. The second one needs
a GPU and a Llama: here tiny random models stand in their place.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from kit.tiny import save_tiny
from test_docs import ROOT, commands, parse

from anchorscope.datasets import load_questions

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")  # what the script below needs
sys.path.insert(0, str(ROOT / "scripts"))
import tutorial  # noqa: E402

NAMES = ("tutorial", "tutorial_gpu")


def kept(name: str):
    return nbformat.read(ROOT / "docs" / f"{name}.ipynb", as_version=4)


def test_the_outputs_are_kept_without_errors_warnings_and_paths_of_a_machine() -> None:
    notebook = kept("tutorial")
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert {out.output_type for out in outputs} == {"execute_result", "stream"}
    assert sum("image/png" in out.get("data", {}) for out in outputs) == 2
    text = json.dumps(outputs, ensure_ascii=False)
    assert not re.search(r"/(?:home|root|tmp|work)/", text)
    assert (ROOT / "docs" / "tutorial.ipynb").stat().st_size < tutorial.MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_links_in_the_text_are_right(name: str, tmp_path: Path) -> None:
    text = "\n\n".join(cell.source for cell in kept(name).cells if cell.cell_type == "markdown")
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    for words in commands(page):
        parse(words)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)


@pytest.mark.parametrize("name", NAMES)
def test_the_code_compiles(name: str) -> None:
    for cell in kept(name).cells:
        if cell.cell_type == "code":
            compile(re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE), name, "exec")


@pytest.mark.slow  # about a minute: pytest -m slow tests/test_tutorial.py -k gpu
def test_the_notebook_for_a_gpu_runs_with_tiny_models_in_place_of_the_llamas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights know nothing, so their verdicts are drawn."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    for name in ("small", "large"):
        save_tiny(tmp_path / name)
    sets = [load_questions(name, limit=60) for name in ("atlas", "atlas-compare")]
    ids = [question.id for each in sets for question in each]
    drawn = pd.DataFrame({"id": ids, "right": [number % 2 for number in range(len(ids))]})
    drawn.to_csv(tmp_path / "verdicts.csv", index=False)
    options = {"verdicts": "verdicts.csv", "prompt": "text", "folds": 3, "fold_seeds": 1,
               "resamples": 100, "max_tokens": 4, "device": "cpu"}  # fmt: skip
    notebook = tutorial.notebook_of("tutorial_gpu")
    (parameters,) = [cell for cell in notebook.cells if "MODELS =" in cell.source]
    parameters.source = (
        "MODELS = ['small', 'large']\nDATA = ['atlas', 'atlas-compare']\n"
        f"LIMIT = 60\nOPTIONS = {options!r}"
    )
    tutorial.execute(notebook, tmp_path)
    assert (tmp_path / "delta_p_paper.pdf").stat().st_size > 10_000
    assert (tmp_path / "runs" / "large" / "report.html").exists()
