"""The text of an answer piece by piece, so that the pieces joined are the answer."""

from __future__ import annotations

from typing import Any

_HALF = "\ufffd"  # what half a character decodes to


class Deltas:
    """What each new token adds to the text; spaces and half characters wait for what follows."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._sent = ""

    def add(self, token: int) -> str:
        """The text that this token adds; may be empty."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True).lstrip()
        # An answer is stripped at its end, and the next token may complete a character.
        return self._beyond(text.rstrip(_HALF).rstrip())

    def rest(self, answer: str) -> str:
        """What is missing when the whole answer is known."""
        return self._beyond(answer)

    def _beyond(self, text: str) -> str:
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new
