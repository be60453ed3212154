"""The chance that this run would have found two pathways in the clear case.

The clear case has humps five spreads of the noise apart (planted.py). A finding of less than two
pathways says little where this chance is small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorscope.pathways.one_law import Known
from anchorscope.pathways.two_pathways.looks import TOLD, Logits, Look, look_closely
from anchorscope.pathways.two_pathways.planted import clear_case
from anchorscope.stats.intervals import Draws

WORLDS = 12  # planted


def power(logits: Logits, known: Known, draws: Draws, *, worlds: int = WORLDS) -> float:
    """The share of planted worlds in which two pathways are shown, by one set of folds."""
    return share_of(shown_in_worlds(logits, known, draws, range(worlds)))


def share_of(shown: Sequence[bool]) -> float:
    """The share of worlds in which two pathways are shown; NaN where none could be planted."""
    return sum(shown) / len(shown) if len(shown) else np.nan


def shown_in_worlds(logits: Logits, known: Known, draws: Draws, worlds: range) -> list[bool]:
    """Whether two pathways are shown in each of these planted worlds; none without any noise."""
    plan = clear_case(logits, known)
    if plan is None:
        return []
    rng = np.random.default_rng(draws.seed)
    shown = []
    for number in range(worlds.stop):
        world = plan.world(rng)
        if number in worlds:  # drawn all the same: a world does not depend on who looks at it
            shown.append(any(map(shows, looks_at(world, known, draws))))
    return shown


def looks_at(world: Logits, known: Known, draws: Draws) -> list[Look]:
    """The looks that decide about a planted world, whose pathways differ in their shifts."""
    looks = look_closely(world, known, draws, laws=("curve",), roads=("shifts",))
    return list(looks.values())


def shows(look: Look) -> bool:
    """Whether this look shows two pathways."""
    return bool(look.shown and look.told < TOLD)
