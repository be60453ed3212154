"""An inspected question as lines and bands, with the names and colours of every pass."""

from __future__ import annotations

from anchorscope.engine.passes import ANSWER_ONLY, CLEAN, KNOCKOUT, NEUTRAL
from anchorscope.inspection.choices import HEADS, PATCH, WINDOW
from anchorscope.inspection.record import Inspected
from anchorscope.notebook.belief_chart import Band, Line
from anchorscope.show.curves import INTERVENTIONS

# Colour and dashes: colour is never the only sign.
_STYLE = {
    CLEAN.name: ("currentColor", ""),
    KNOCKOUT.name: (INTERVENTIONS[KNOCKOUT.name][1], ""),
    NEUTRAL.name: (INTERVENTIONS[NEUTRAL.name][1], "2 3"),
    ANSWER_ONLY.name: (INTERVENTIONS[ANSWER_ONLY.name][1], "7 3"),
    PATCH: ("#d6438a", "9 3 2 3"),
    WINDOW: ("#17a2b8", "4 2"),
    HEADS: ("#a9725f", "1 3 6 3"),
}


def lines_of(of: Inspected) -> list[Line]:
    """P(wrong) by layer of every pass, the clean one first."""
    return [
        Line(name=name, label=label_of(of, name), values=values, color=color, dash=dash)
        for name, values in of.beliefs.items()
        for color, dash in [_STYLE[name]]
    ]


def bands_of(of: Inspected) -> list[Band]:
    """The middle half of the run's Q and A under the knockout."""
    return [
        Band(
            name=name,
            label=f"{name} of the run, its own subjects cut",
            low=[low for low, _ in values],
            high=[high for _, high in values],
            color=of.colors[name],
        )
        for name, values in of.bands.items()
    ]


def label_of(of: Inspected, name: str) -> str:
    """What a reader calls a pass."""
    own = tuple(token.position for token in of.tokens if token.exact_question)
    choices = of.choices
    heads = ", ".join(f"{block}.{head}" for block, head in choices.heads)
    labels = {
        CLEAN.name: "clean",
        KNOCKOUT.name: "exact question tokens cut" if of.cut == own else "chosen tokens cut",
        NEUTRAL.name: "as many neutral tokens cut",
        ANSWER_ONLY.name: "answer without question",
        PATCH: f"another subject: {choices.subject.strip()}",
        WINDOW: f"cut in the last {choices.window} blocks only",
        HEADS: f"cut in {'heads' if len(choices.heads) > 1 else 'head'} {heads} only",
    }
    return labels[name]
