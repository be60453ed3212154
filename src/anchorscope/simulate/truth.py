"""What is planted in a made-up world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from anchorscope.errors import UserError, unknown

World = Literal[
    "two-pathways",
    "to-the-prior",
    "one-way",
    "one-layer",
    "one-mechanism",
    "noise",
    "no-effect",
    "shift",
    "continuum",
    "skewed",
    "forgetting",
    "heavy-tails",
    "templates",
    "two-kinds",
    "margin",
    "blocks",
]
WORLDS: tuple[World, ...] = get_args(World)
TRUE: tuple[World, ...] = ("two-pathways", "to-the-prior", "one-way", "one-layer")


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is planted: how much, in how many samples, under how much noise."""

    world: World = "two-pathways"
    samples: int = 400
    layers: int = 12
    width: int = 32
    strength: float = 4.0  # how far a belief is pushed, in spreads of the belief
    mixture: float = 0.5  # share of the samples that are pushed (two-pathways, continuum's mean)
    noise: float = 0.5  # spread of the knockout's own jolt, in every direction
    templates: int = 4  # of question, in the world of that name
    seed: int = 0

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise unknown("world", self.world, WORLDS)
        for name, least in (("samples", 60), ("layers", 1), ("width", 2), ("templates", 2)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}. Accepted: {least} or more.")
        if not 0 < self.mixture < 1:
            raise UserError(f"mixture is {self.mixture}. Accepted: between 0 and 1.")
        if not (self.strength >= 0 and self.noise > 0):
            raise UserError(
                f"strength is {self.strength} and noise {self.noise}. Accepted: strength of 0 or "
                "more, noise above 0."
            )
