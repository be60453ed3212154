"""Texts of files on a terminal: what would move its cursor or change its title is shown as code."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from kit.show_fixture import make_run

import anchorscope
from anchorscope.run_folder.manifest import info_text

EVIL = "x\x1b]0;owned\x07\x1b[2J\x9b31m\u202ey"


def forge(run: Path) -> Path:
    """The run with escapes in every text of run.json that commands print."""
    info = json.loads((run / "run.json").read_text())
    info.pop("checksum", None)
    info["model"] |= {"name": EVIL, "source": EVIL}
    for dataset in info["datasets"]:
        dataset["title"] = EVIL
    for file in run.glob("run*.json"):
        file.write_bytes(info_text(info))
    return run


@pytest.mark.parametrize(
    "command", [["claims"], ["power"], ["app", "--port", 0], ["figure", "--out", "x.svg"]]
)
def test_escapes_of_a_run_do_not_reach_the_terminal(cli, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    run = forge(make_run(tmp_path / "run", n=20, layers=2))
    name, *more = command
    _, out, error = cli(name, run, *more)
    assert not set("\x1b\x07\x9b\u202e") & set(out + error), out + error
    assert "Traceback" not in error
    if name == "app":
        shown = r"names the model 'x\u001b]0;owned\u001b[2J\u009b31m\u202ey'"  # rich drops bells
        assert shown in error


def test_a_line_of_json_says_the_same_after_escaping():
    from anchorscope.cli.terminal import visible

    line = json.dumps({"answer": EVIL + "\n\t\x7f é 日本"}, ensure_ascii=False)
    assert json.loads(visible(line)) == json.loads(line)
    assert visible("one\n\ttwo é 日本") == "one\n\ttwo é 日本"


def test_the_id_of_a_question_is_no_emoji():
    from anchorscope.cli.terminal import Terminal

    Terminal(file=(file := io.StringIO()), width=80).print("triviaqa:train:7", markup=False)
    assert file.getvalue() == "triviaqa:train:7\n"


def test_colours_of_our_own_stay():
    from anchorscope.cli.terminal import Terminal

    file = io.StringIO()
    console = Terminal(file=file, force_terminal=True, color_system="standard", width=80)
    console.print("[red]no[/]", end="")
    console.print(EVIL, markup=False, highlight=False)
    assert "\x1b[31mno\x1b[0m" in file.getvalue()
    assert r"x\u001b]0;owned" in file.getvalue()


def test_all_text_goes_to_the_terminal_through_one_place():
    package = Path(anchorscope.__file__).parent
    for file in sorted(package.rglob("*.py")):
        if file == package / "cli" / "terminal.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("typer.echo", "print", "Console", "click.echo"), (
                    f"{file}:{node.lineno}"
                )


def test_without_a_terminal_a_line_now_and_then_says_how_far_the_stage_is(capsys):
    from anchorscope.cli.terminal import Bar

    with Bar(seconds=0.01) as bar:
        bar.start("answers and states", 120)
        bar.advance(64)
        error = ""
        while "minutes so far" not in error:  # printed by a thread of its own
            error += capsys.readouterr().err
    assert "answers and states (64/120), 0.0 minutes so far" in error
