"""The seconds of stages that go on at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Spent(NamedTuple):
    """From when to when a stage was at work, in seconds of one clock."""

    stage: str
    begun: float
    ended: float


def shared_out(spent: Sequence[Spent], read: float) -> dict[str, tuple[float, float]]:
    """Each stage's seconds while the model read, and its share of those after `read`.

    A second in which several stages were at work after the reading counts once: they share it, so
    that the seconds of all stages add up to those of the run.
    """
    seconds = {of.stage: [0.0, 0.0] for of in spent}
    for of in spent:
        seconds[of.stage][0] += max(0.0, min(of.ended, read) - of.begun)
    times = sorted({max(read, time) for of in spent for time in (of.begun, of.ended)})
    for begun, ended in pairwise(times):
        at_work = [of.stage for of in spent if of.begun < ended and of.ended > begun]
        for stage in at_work:
            seconds[stage][1] += (ended - begun) / len(at_work)
    return {stage: (beside, late) for stage, (beside, late) in seconds.items()}
