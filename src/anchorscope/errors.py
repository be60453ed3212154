"""One way to fail: what was given, what is accepted, what to do."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(Exception):
    """A mistake its reader can mend; the command line prints it without a traceback."""


def unknown(kind: str, given: object, accepted: Iterable[object], do: str = "") -> UserError:
    """The error for a value outside a list of choices, with the list in it."""
    choices = ", ".join(str(choice) for choice in accepted)
    return UserError(f"Unknown {kind} '{given}'. Accepted: {choices}.{' ' + do if do else ''}")
