"""The whole pipeline on hostile questions: a finished run, or a sentence; never a traceback."""

from __future__ import annotations

import json

import pytest
from kit.tiny import save_tiny
from torture.hostile import MARKUP, SPECIAL, WORDS

OPTIONS = ["--max-tokens", "4", "--device", "cpu", "--dtype", "float32", "--resamples", "100",
           "--fold-seeds", "1", "--shots", "0", "--evidence", "none"]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny(folder)
    return folder


def odd_rows() -> list[dict[str, object]]:
    texts = [text for text in (*WORDS, *SPECIAL, *MARKUP) if text.strip() and len(text) < 300]
    return [{"question": f"{text} {n}", "answers": [text]} for n, text in enumerate(texts)]


def written(folder, content, name="q.jsonl"):
    (folder / name).write_text("\n".join(map(json.dumps, content)))
    return folder / name


@pytest.mark.slow
def test_a_run_over_texts_of_every_kind_is_finished_and_shown(cli, model, tmp_path):
    """Half of the verdicts are given as right; a popularity of NaN is one not known."""
    rows = [
        row | {"id": str(n), "popularity": float("nan") if n % 3 else 7.5}
        for n, row in enumerate(odd_rows())
    ]
    file = written(tmp_path, rows)
    given = [{"id": f"q:all:{n}", "right": n % 2} for n in range(len(rows))]
    verdicts = written(tmp_path, given, "v.jsonl")
    out = tmp_path / "run"
    code, _, error = cli("run", "--model", model, "--data", file, "--verdicts", verdicts, "--out",
                         out, *OPTIONS)  # fmt: skip
    assert code == 0, error
    assert json.loads((out / "run.json").read_text())["finished"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") and "Content-Security-Policy" in page
    code, _, error = cli("view", out, "--no-open")
    assert code == 0, error
