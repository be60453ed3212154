"""Make error messages for the user: what was given, what is accepted, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# Characters that a terminal acts on instead of showing: control characters other than tab and line
# feed, marks that change the direction of text, and lone surrogates, which cannot be encoded.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """An error that the user can fix; the command line prints it without a traceback."""


def unknown(
    kind: str,
    given: object,
    accepted: Iterable[object],
    do: str = "",
    *,
    similar: Iterable[str] | None = None,
) -> UserError:
    """Make the error for a value that is no valid choice; list the choices and suggest one.

    The suggestion is the most similar name in `similar`, by default in the choices.
    """
    choices = [str(choice) for choice in accepted]
    meant = did_you_mean(given, choices if similar is None else similar)
    return UserError(
        f"Unknown {kind} '{given}'. Accepted: {', '.join(choices)}.{' ' + do if do else ''}{meant}"
    )


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """Make the sentence " Did you mean 'x'?" for the most similar name; "" if none is similar."""
    near = get_close_matches(str(given)[:200], list(names), n=1, cutoff=0.76)
    return f" Did you mean '{near[0]}'?" if near else ""


def beside(path: Path) -> list[str]:
    """List the paths beside a missing one, to suggest one of them."""
    try:
        return [str(path.with_name(name)) for name in os.listdir(path.parent)[:10_000]]
    except (OSError, ValueError):
        return []


def in_a_line(message: object, most: int = 300) -> str:
    """Shorten an error or reply to its first line, without control characters."""
    kind = type(message).__name__
    line = next(iter(str(message).strip()[: 2 * most].splitlines()), "")
    shown = "".join(c if c.isprintable() else "?" for c in line).strip()
    return (shown if len(shown) <= most else shown[: most - 3] + "...") or kind


def short(value: object, most: int = 60) -> str:
    """The repr of a value for a message, shortened to `most` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in lists
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= most else text[: most - 3] + "..."


def user_path(given: str | os.PathLike[str]) -> Path:
    """Expand `~` in a path from the user; raise a UserError where no file can have the path."""
    path = Path(os.path.expanduser(given))
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:  # too long, or with a character that no name may have
        shown, why = short(os.fspath(given), 80), getattr(error, "strerror", None) or error
        raise UserError(f"{shown} cannot be a path: {why}. Give another one.") from error
    return path
