"""Make the site's page about the command line from the commands themselves.

python scripts/site/help_page.py    # prints it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typer.main import get_command

from anchorscope.cli import app

HEAD = """# The command line

*For users of the command line: every option.*

`anchorscope COMMAND --help` prints the same in the terminal.
"""


def page() -> str:
    """Write the page about the command line as Markdown."""
    group: Any = get_command(app)
    own = [f"[{option.opts[0]}]" for option in _options(group.params)]
    usage = _block([" ".join(["anchorscope", *own, "COMMAND ..."])])
    parts = [HEAD, usage, group.help.strip() + "\n", group.epilog + "\n"]
    shown = {_row(option) for option in _options(group.commands["run"].params)}
    for name, command in _commands(group):
        parts += [f"## anchorscope {name}\n", f"`$ {_usage(name, command.params)}`\n"]
        same = [o for o in _options(command.params) if name != "run" and _row(o) in shown]
        rows = [*_arguments(command.params), *_options(command.params)]
        parts += [command.help.strip() + "\n", _table([row for row in rows if row not in same])]
        if same:
            flags = ", ".join(f"`{option.opts[0]}`" for option in same)
            parts.append(f"And as [`anchorscope run`](#anchorscope-run) has them: {flags}.\n")
    return "\n".join(parts)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _usage(name: str, params: Sequence[Any]) -> str:
    """The usage line of a command: arguments in capitals, optional ones in brackets."""
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
    """Format parameters as a Markdown table with their defaults and lines of help."""
    lines = ["| option | default | what it is |", "| --- | --- | --- |"]
    return "\n".join([*lines, *map(_row, params)]) + "\n" if params else ""


def _row(param: Any) -> str:
    name = param.opts[0] if param.opts[0].startswith("-") else param.name.upper()
    return f"| `{name}` | {_default(param)} | {param.help} |"


def _default(param: Any) -> str:
    if param.required:
        return "needed"
    if getattr(param, "is_flag", False):  # an argument has none
        return "off"
    return "none" if param.default in (None, "") else f"`{param.default}`"


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


if __name__ == "__main__":
    print(page())
