"""Errors for the user: what was given, what is accepted, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# What acts on a terminal instead of being shown: control characters but tab and line end, marks
# that turn the direction of text, and halves of characters, which cannot be written at all.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """A mistake its reader can mend; the command line prints it without a traceback."""


def unknown(
    kind: str,
    given: object,
    accepted: Iterable[object],
    do: str = "",
    *,
    similar: Iterable[str] | None = None,
) -> UserError:
    """The error for a value outside a list of choices, with the list and the likeliest in it.

    `similar` are the names that may have been meant, where they are others than the list.
    """
    choices = [str(choice) for choice in accepted]
    meant = did_you_mean(given, choices if similar is None else similar)
    return UserError(
        f"Unknown {kind} '{given}'. Accepted: {', '.join(choices)}.{' ' + do if do else ''}{meant}"
    )


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """The sentence " Did you mean 'x'?" for the name nearest to what was typed; else nothing."""
    near = get_close_matches(str(given)[:200], list(names), n=1, cutoff=0.76)
    return f" Did you mean '{near[0]}'?" if near else ""


def beside(path: Path) -> list[str]:
    """What is in the folder of a path that is not there, as the path would spell it."""
    try:
        return [str(path.with_name(name)) for name in os.listdir(path.parent)[:10_000]]
    except (OSError, ValueError):
        return []


def in_a_line(message: object, most: int = 300) -> str:
    """The first line of a foreign error or reply, shortened, without control characters."""
    kind = type(message).__name__
    line = next(iter(str(message).strip()[: 2 * most].splitlines()), "")
    shown = "".join(c if c.isprintable() else "?" for c in line).strip()
    return (shown if len(shown) <= most else shown[: most - 3] + "...") or kind


def short(value: object, most: int = 60) -> str:
    """A value as Python writes it, for a message; shortened where it is long."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def user_path(given: str | os.PathLike[str]) -> Path:
    """The path that the user gave, `~` taken for home; a UserError where no file can have it."""
    path = Path(os.path.expanduser(given))
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:  # too long, or with a character that no name has
        shown, why = short(os.fspath(given), 80), getattr(error, "strerror", None) or error
        raise UserError(f"{shown} cannot be a path: {why}. Give another one.") from error
    return path
