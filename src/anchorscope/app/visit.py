"""What one visitor looks at, and what each of their steps does to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from anchorscope.app.desk import Desk, Growth
from anchorscope.errors import UserError
from anchorscope.inspection.asking import Asked
from anchorscope.inspection.choices import Choices, heads_in
from anchorscope.inspection.panel import message, panel, streamed
from anchorscope.inspection.prompts import with_subject
from anchorscope.records import Mode

log = logging.getLogger(__name__)
Side = Literal[0, 1]
NEUTRAL, ALONE, PATCH = "neutral tokens", "answer without question", "other subject, same answer"
CHANGES = (NEUTRAL, ALONE, PATCH)
WELCOME = "Ask a question, or pick one of the run's. The answer is then taken apart here."
BESIDE = (
    "The same question about another subject appears here: type a subject and press the button."
)


@dataclass(frozen=True)
class Switches:
    """What stands in the page's controls."""

    changes: tuple[str, ...] = (NEUTRAL, ALONE)
    subject: str = ""
    window: int = 0  # 0: none
    heads: str = ""
    mode: Mode = "strict"


@dataclass(frozen=True)
class Visit:
    """The one or two questions of a visitor, and the tokens they chose to cut in each."""

    asked: tuple[Asked | None, Asked | None] = (None, None)
    cut: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    said: tuple[str, str] = (message(WELCOME), message(BESIDE))  # the two panels

    def with_side(self, side: Side, **values: Any) -> Visit:
        """The visit with one side's values replaced."""
        pairs = {name: list(getattr(self, name)) for name in values}
        for name, value in values.items():
            pairs[name][side] = value
        return replace(self, **{name: tuple(pair) for name, pair in pairs.items()})


def ask(
    desk: Desk, visit: Visit, question: str, dataset: str, switches: Switches, *, side: Side = 0
) -> Iterator[Visit]:
    """The visit as the answer grows, and with the answer taken apart at the end."""
    try:
        for step in desk.stream(question, dataset):
            if isinstance(step, Growth):
                yield visit.with_side(side, said=streamed(question, step.tokens, step.wrong))
            else:
                visit = visit.with_side(side, asked=step, cut=None)
        if side == 0:
            visit = visit.with_side(1, asked=None, cut=None, said=message(BESIDE))
        yield drawn(desk, visit, switches, side)
    except Exception as error:
        yield visit.with_side(side, asked=None, said=message(friendly(error)))


def ask_beside(desk: Desk, visit: Visit, switches: Switches) -> Iterator[Visit]:
    """The same question about another subject, on the right."""
    first = visit.asked[0]
    try:
        if first is None:
            raise UserError("Ask a question on the left first.")
        text = with_subject(first.sample, switches.subject)
    except UserError as error:
        yield visit.with_side(1, asked=None, said=message(str(error)))
        return
    yield from ask(desk, visit, text, first.sample.question.dataset, switches, side=1)


def toggle(desk: Desk, visit: Visit, token: Any, switches: Switches, side: Side) -> Visit:
    """The visit with one token cut that was kept, or kept that was cut."""
    asked = visit.asked[side]
    if asked is None or not isinstance(token, int | float):
        return visit
    chosen = set(desk.cut(asked, visit.cut[side]))
    return drawn(
        desk, visit.with_side(side, cut=tuple(sorted(chosen ^ {int(token)}))), switches, side
    )


def restore(desk: Desk, visit: Visit, switches: Switches) -> Visit:
    """The visit with the run's own tokens cut again, on both sides."""
    return redraw(desk, replace(visit, cut=(None, None)), switches)


def redraw(desk: Desk, visit: Visit, switches: Switches) -> Visit:
    """Both sides read again, after a switch was turned."""
    for side in (0, 1):
        if visit.asked[side] is not None:
            visit = drawn(desk, visit, switches, side)
    return visit


def drawn(desk: Desk, visit: Visit, switches: Switches, side: Side) -> Visit:
    """The visit with one side read under the switches; a mistake is said above the panel."""
    asked = visit.asked[side]
    if asked is None:
        return visit
    try:
        choices, warning = _choices(switches, visit.cut[side], side), ""
        said = panel(desk.read(asked, choices, switches.mode), live=True)
    except UserError as error:
        plain = Choices(cut=visit.cut[side])
        warning = message(str(error))
        said = panel(desk.read(asked, plain, switches.mode), live=True)
    return visit.with_side(side, said=warning + said)


def _choices(switches: Switches, cut: tuple[int, ...] | None, side: Side) -> Choices:
    # The other subject stands on the right already: there is no third one to patch in.
    patched = PATCH in switches.changes and side == 0
    if patched and not switches.subject.strip():
        raise UserError("Type another subject to put into the question, or switch that change off.")
    return Choices(
        cut=cut,
        neutral=NEUTRAL in switches.changes,
        answer_only=ALONE in switches.changes,
        subject=switches.subject if patched else "",
        window=switches.window or None,
        heads=heads_in(switches.heads),
    )


def friendly(error: Exception) -> str:
    """One line for a visitor; what is not their mistake is logged with its traceback."""
    if isinstance(error, UserError):
        return str(error)
    log.error("a question could not be answered", exc_info=error)
    return "That went wrong on our side; the terminal says how. Try another question."
