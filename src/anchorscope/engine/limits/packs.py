"""Packs longer than any before: the row that ends last in such a one is read once more, alone.

A model that looks at places in a pack is right only where they and positions are few. The checks
on load try a short pack; from then on the packs of the run themselves are what is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from anchorscope.engine.layout import Layout
from anchorscope.engine.limits.bounds import Proved, note, noted_of
from anchorscope.errors import UserError
from anchorscope.models import Model

Alone = Callable[[int], Tensor]  # reads a row of a pack by itself: its states [layer, width]


class PackTooLong(UserError):
    """The model looks at places in a pack, and is right up to so many tokens."""

    def __init__(self, model: Model, *, right: int, given: int) -> None:
        super().__init__(
            f"{model.name} looks at places in a pack and is right up to {right} tokens; "
            f"{given} were given. Use shorter prompts or fewer examples."
        )
        self.tokens = right


class Packs:
    """What is proved of the packs of one lease, and the trial of those that are longer."""

    def __init__(self, lease: Any) -> None:
        self._lease, self._model = lease, lease.model
        self._trying = False

    @property
    def _proved(self) -> Proved | None:
        return noted_of(self._model.lm).proved

    def longer(self, layout: Layout) -> int | None:
        """How long a pack is, by its tokens or their positions, where none so long was tried."""
        proved = self._proved
        # The columns bound the positions, and counting them makes no GPU wait.
        if proved is None or self._trying or max(len(layout.place), layout.keys) <= proved.tokens:
            return None
        longest = max(len(layout.place), int(layout.query_at.max()) + 1)
        return longest if longest > proved.tokens else None

    def compare(self, last: Tensor, longest: int, states: Tensor, alone: Alone) -> None:
        """Holds a row of a pack against that row alone; `states` are [row, layer, width].

        It is the row whose last token stands furthest in the pack: of tokens that rows share only
        the first is packed, so that the pack's last row may stand anywhere. `last` is where each
        row's last token stands. A row that rounding moves further than the checks allow proves
        nothing, and neither do positions beyond its place: made-up rows are tried then.
        """
        proved, row = self._proved, int(last.argmax())
        assert proved is not None
        tokens = int(last[row]) + 1
        with self._trial():
            same = proved.near(states[row], alone(row))
        if same:
            self._note(max(proved.tokens, tokens))
        if not same or longest > tokens:
            self.try_made_up(longest)

    def try_made_up(self, longest: int) -> None:
        """Tries made-up rows in a pack of this length; an error where they change one another."""
        noted = noted_of(self._model.lm)
        proved = noted.proved
        assert proved is not None
        if longest <= proved.tokens:
            return
        with self._trial():
            right = proved.tokens if noted.largest else self._right(proved, longest)
        self._note(right)
        if right < longest:
            note(self._model.lm, replace(noted_of(self._model.lm), largest=right))
            raise PackTooLong(self._model, right=right, given=longest)

    def _right(self, proved: Proved, longest: int) -> int:
        """The most tokens of a pack that are right: this many or more, or else fewer.

        Powers of two, so that batches of like size come to the same end.
        """
        power = 1 << (longest - 1).bit_length()
        for tokens in (power, longest):
            if proved.more(self._lease, tokens):
                return tokens
        while (power := power // 2) > proved.tokens:
            if proved.more(self._lease, power):
                return power
        return proved.tokens

    def _note(self, tokens: int) -> None:
        noted = noted_of(self._model.lm)
        assert noted.proved is not None
        note(self._model.lm, replace(noted, proved=noted.proved._replace(tokens=tokens)))

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """Passes that are not tried themselves, and that nobody watches."""
        lease = self._lease
        watches, self._trying = (lease.look, lease.beside), True
        lease.look = lease.beside = None
        try:
            yield
        finally:
            (lease.look, lease.beside), self._trying = watches, False
