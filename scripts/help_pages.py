"""Writes docs/help.md from the command line itself, so that the page cannot lag behind it.

python scripts/help_pages.py            # writes docs/help.md
python scripts/help_pages.py --check    # exit code 1 where the page is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from anchorscope.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "help.md"
HEAD = """# The command line

*For users of the command line: every option.*

Made by `python scripts/help_pages.py` from the commands themselves. A test compares the two.
`anchorscope COMMAND --help` prints the same in the terminal.
"""


def page() -> str:
    """The whole of docs/help.md."""
    group: Any = get_command(app)
    own = [f"[{option.opts[0]}]" for option in _options(group.params)]
    usage = _block([" ".join(["anchorscope", *own, "COMMAND ..."])])
    parts = [HEAD, usage, group.help.strip() + "\n", group.epilog + "\n"]
    for name, command in _commands(group):
        parts += [f"## anchorscope {name}\n", f"`$ {_usage(name, command.params)}`\n"]
        parts += [command.help.strip() + "\n", _table(command.params)]
    return "\n".join(parts)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name; those of a group stand one by one."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _usage(name: str, params: Sequence[Any]) -> str:
    """The shape of the command: arguments in capitals, what may be left out in brackets."""
    words = ["anchorscope", name]
    for p in _arguments(params):
        word = f"{p.name.upper()}..." if p.nargs == -1 else p.name.upper()
        words.append(word if p.required else f"[{word}]")
    words += [f"{p.opts[0]} VALUE" for p in _options(params) if p.required]
    return " ".join([*words, "[OPTIONS]"])


def _arguments(params: Sequence[Any]) -> list[Any]:
    return [p for p in params if not p.opts[0].startswith("-")]


def _options(params: Sequence[Any]) -> list[Any]:
    return [p for p in params if p.opts[0].startswith("-")]


def _table(params: Sequence[Any]) -> str:
    """Arguments first, then options, each with its default and its line of help."""
    rows = [(f"`{p.name.upper()}`", _default(p), p.help) for p in _arguments(params)]
    rows += [(f"`{p.opts[0]}`", _default(p), p.help) for p in _options(params)]
    lines = ["| option | default | what it is |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _default(param: Any) -> str:
    if param.required:
        return "needed"
    if getattr(param, "is_flag", False):  # an argument has none
        return "off"
    return "none" if param.default in (None, "") else f"`{param.default}`"


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
