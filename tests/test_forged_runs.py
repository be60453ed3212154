"""Forged run folders whose checksums fit: a sentence or a good page, never a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.forged_runs import FORGERIES, forged

from anchorscope.errors import UserError
from anchorscope.run_folder.view import RunView
from anchorscope.show import write_report

# What a command may do with a forgery: it does not read what was forged, or clips it.
HARMLESS = ("beyond the text", "beyond the answer", "beyond the tokens", "a span of NaN",
            "n is below 0", "infinite", "half of the rows", "logits are NaN",
            "claims: empty")  # fmt: skip
READ = ("samples", "answers", "layers", "probes", "controls", "strict", "findings", "claims",
        "spans", "pathways")  # fmt: skip


@pytest.fixture
def run(finished_place: Path) -> Path:
    return finished_place / "run"


def commands(run: Path) -> list[tuple[object, ...]]:
    out = run.parent / "out"
    return [
        ("verify", run),
        ("claims", run),
        ("view", run, "--no-open"),
        ("export", run, "--to", "numpy", "--out", out / "numpy"),
        ("figure", run, "--out", out / "delta_p.svg"),
        ("power", run, "--worlds", "10"),
    ]


def outcomes(cli, run: Path, *, only: int) -> set[int]:
    """The exit codes of the first commands; each that fails says one sentence."""
    codes = set()
    for words in commands(run)[:only]:
        code, _, error = cli(*words)
        assert code in (0, 1, 2) and "Traceback" not in error, (words, error)
        assert code != 2 or len(error.strip().splitlines()) == 1, (words, error)
        codes.add(code)
    return codes


def test_the_run_before_it_is_forged_is_good(cli, run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    assert outcomes(cli, copy, only=6) == {0}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_table_of_a_forged_folder_ends_in_a_traceback(run, tmp_path, name):
    """Every table is read or refused, and the report is written or refused."""
    copy, refused = forged(run, name, tmp_path / "run"), {}
    parts = {"run.json": lambda: RunView.open(copy)}
    parts |= {table: lambda table=table: getattr(RunView.open(copy), table) for table in READ}
    parts["report"] = lambda: write_report(RunView.open(copy))  # of tables that can all be read
    for part, read in parts.items():
        if part == "report" and refused:
            continue
        try:
            read()
        except UserError as error:
            refused[part] = str(error)
    assert all(str(copy) in message or "samples.parquet" in message for message in refused.values())
    part = name.split(":")[0]
    of_another = "of another" in name and part != "findings"
    if part in READ and not name.endswith(HARMLESS) and not of_another:
        assert part in refused or (part == "samples" and "answers" in refused)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FORGERIES)[::10])
def test_every_command_on_a_forged_folder_ends_in_a_sentence_or_a_page(cli, run, tmp_path, name):
    outcomes(cli, forged(run, name, tmp_path / "run"), only=6)
