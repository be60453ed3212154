"""The words of the project are executed: commands, Python, links, messages, the help page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.serve_fixture import make_served, server_process
from test_layers_of_imports import ORDER
from typer.main import get_command

from anchorscope.cli import app, main
from anchorscope.config import Config, from_text

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SHRINK = re.compile(r"<!-- in tests: (.+?) -> (.+?) -->")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in one of these languages."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Every `anchorscope ...` command that a page asks its reader to type, as words."""
    lines = [line for text in blocks(page, "bash", "console") for line in text.splitlines()]
    inline = FENCE.sub("", page.read_text(encoding="utf-8"))
    lines += re.findall(r"`(anchorscope [^`\n]+)`", inline)
    found = [re.sub(r"^\$ ", "", line) for line in lines]
    typed = [shlex.split(line, comments=True) for line in found if line.startswith("anchorscope ")]
    return [words[1:] for words in typed if not words[1].isupper()]  # COMMAND stands for any


def parse(words: list[str], group: Any = None) -> None:
    """Reads a command as the command line would; nothing is run."""
    group = group or get_command(app)
    if words[0].startswith("-"):
        assert any(words[0] in p.opts for p in group.params), words
        return
    command = group.commands[words[0]]
    if hasattr(command, "commands") and len(words) > 1:
        return parse(words[1:], command)
    if words[1:] in (["--help"], ["-h"]):
        return
    # A command alone, such as `anchorscope figure`, names it; with words it has to be whole.
    params = command.make_context(words[0], words[1:], resilient_parsing=len(words) == 1).params
    if words[0] == "run" and len(words) > 1:
        Config(**{n: from_text(n, given) for n, given in params.items() if n != "out"})


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "errors.md"], ids=name_of)
def test_commands_parse(page: Path) -> None:
    for words in commands(page):
        parse(words)


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    bare = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in bare}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_trees_exist(page: Path) -> None:
    """A block marked `tree` lists files and folders of the repository, one a line."""
    for text in blocks(page, "tree"):
        for line in text.splitlines():
            for name in re.match(r"[^ ]+(?: [^ ]+)*?(?=  |$)", line.strip())[0].split():  # type: ignore[index]
                assert (ROOT / name).exists(), f"{name_of(page)} lists {name}"


def test_the_order_of_imports_is_the_one_that_is_kept() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (order,) = re.findall(r"^errors, .*?cli\.$", text, re.MULTILINE | re.DOTALL)
    parts = [part.split(",") for part in order.rstrip(".").split("<")]
    assert [{name.strip() for name in names} for names in parts] == ORDER


def recipes() -> dict[str, list[str]]:
    """What CONTRIBUTING says how to add, each with the files of src/anchorscope it names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"^### (.+)\nFiles: (.+)\.$", text, re.MULTILINE)
    return {name.lower(): re.findall(r"`([^`]+)`", files) for name, files in found}


def test_a_recipe_names_files_that_exist_and_as_many_as_the_table_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (an? [^|]+) \| (\d+) \|$", text, re.MULTILINE)
    assert {name: int(count) for name, count in table} == {
        name: len(set(files)) for name, files in recipes().items()
    }
    for name, files in recipes().items():
        for file in files:  # a part in <> stands for the name of what is added
            pattern = re.sub(r"<\w+>", "[a-z]*", file)
            assert list((ROOT / "src" / "anchorscope").glob(pattern)), f"{name} names {file}"


@pytest.mark.parametrize(
    ("recipe", "example", "name"),
    [
        ("a dataset", r"\bPOPQA\b", "popqa"),
        ("a detector baseline", r"\bTokenFeatures\b", ""),
    ],
)
def test_what_is_there_already_stands_in_no_other_file(recipe, example, name) -> None:
    """The count of a recipe is that of an example: the files in which its name occurs."""
    package = ROOT / "src" / "anchorscope"
    files = [f for f in package.rglob("*.py") if re.search(example, f.read_text(encoding="utf-8"))]
    named = {re.sub(r"<\w+>", name, file) for file in recipes()[recipe]}
    assert {str(file.relative_to(package)) for file in files} == named


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_sentences_exist(page: Path) -> None:
    """`engine/lease.py` and the like; a part in <> stands for any name."""
    if page.name == "CHANGELOG.md":  # it may name what is gone
        return
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for name in re.findall(r"`([\w<>/.-]+\.(?:py|css|js))`", text):
        pattern = re.sub(r"<\w+>", "[a-z]*", name.removeprefix("src/anchorscope/"))
        places = (ROOT, ROOT / "src" / "anchorscope")
        whole = any(list(place.glob(pattern)) for place in places)
        assert whole or ("/" not in name and list(ROOT.glob(f"src/**/{name}"))), (
            f"{name_of(page)} names {name}"
        )


@pytest.mark.parametrize("name", ["docs/run-folder.md", "SECURITY.md"])
def test_cited_tests_exist(name: str) -> None:
    """A promise names the file of its test, or the test in it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    cited = re.findall(r"\b(tests/test_\w+\.py)(?:::(\w+))?", text)
    assert cited
    for file, test in cited:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\(" if test else "^def test_", source, re.MULTILINE), test


def sessions() -> list[tuple[str, str]]:
    """The commands of docs/errors.md in their order, each with the output that the page shows."""
    text = "".join(blocks(ROOT / "docs" / "errors.md", "console"))
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2].strip()) for part in parts]


def test_errors_are_said_as_the_page_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    seen = sessions()
    assert len(seen) > 20
    for command, shown in seen:
        if not command.startswith("anchorscope "):
            subprocess.run(["bash", "-c", command], check=True)
            continue
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            main()
        assert (stopped.value.code, capfd.readouterr().err.strip()) == (2, shown), command


def test_python_of_own_data_runs(tmp_path: Path, monkeypatch) -> None:
    code = "\n".join(blocks(ROOT / "docs" / "own-data.md", "python"))
    quick = "anc.Config(resamples=100, folds=3, fold_seeds=1, evidence=())"
    size = "samples, layers, width = 200, 2, 16"
    assert 'out="runs/states")' in code and size in code
    code = code.replace(size, "samples, layers, width = 80, 1, 8")
    monkeypatch.chdir(tmp_path)
    code = code.replace('out="runs/states")', f'out="runs/states", config={quick})')
    made: dict[str, Any] = {}
    exec(compile(code, "own-data.md", "exec"), made)
    assert len(made["run"].findings) == 1
    assert (tmp_path / "runs" / "states" / "report.html").stat().st_size > 10_000


DEMO = ("atlas", "atlas-compare")  # what `anchorscope run` asks when no data is named
TINY = {"--model bundled": "--model tiny --device cpu", "SmolLM2-135M-Instruct": "tiny"}


def test_quick_start_of_serving_runs(tmp_path: Path, monkeypatch) -> None:
    """All that asks the server, of a tiny model that has answered the demo's questions already."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "serving.md"
    changes = dict(SHRINK.findall(page.read_text(encoding="utf-8"))) | TINY
    make_served(tmp_path, "probe", datasets=DEMO).joinpath("probe").rename("detector")

    def changed(code: str) -> str:
        for long, other in changes.items():
            code = code.replace(long, other)
        return code

    install, _, _, serve = changed(blocks(page, "bash")[0]).splitlines()
    assert install == "pip install 'anchorscope[serve]'"
    words = shlex.split(serve.replace("8000", "0"))
    assert words[:3] == ["anchorscope", "detect", "serve"]
    with server_process(*words[3:], cwd=tmp_path, OMP_NUM_THREADS="1") as address:
        there = address.removesuffix("/v1")
        code = changed("\n".join(blocks(page, "python"))).replace("http://127.0.0.1:8000", there)
        made: dict[str, Any] = {}
        exec(compile(code, "serving.md", "exec"), made)
        lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
        curls = [line for line in lines if line.startswith("curl ")]
        for line in curls:
            typed = changed(line).replace("http://127.0.0.1:8000", there)
            assert subprocess.run(shlex.split(typed), check=True, capture_output=True).stdout
    assert made["score"]["probability"] == made["answer"].anchorscope["probability"]
    assert len(curls) == 5
