"""What is planted in a simulated world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from anchorscope.errors import UserError, unknown

World = Literal[
    "two-pathways",
    "to-the-prior",
    "one-way",
    "uneven-kinds",
    "unlabelled-kinds",
    "one-layer",
    "one-mechanism",
    "noise",
    "no-effect",
    "shift",
    "continuum",
    "skewed",
    "forgetting",
    "heavy-tails",
    "coin-toss",
    "margin",
    "templates",
    "two-kinds",
    "interaction",
    "popularity",
    "finder-misses",
    "blocks",
]
WORLDS: tuple[World, ...] = get_args(World)
# Worlds with two groups that nothing recorded about a sample explains.
TRUE: tuple[World, ...] = (
    "two-pathways", "to-the-prior", "one-way", "uneven-kinds", "unlabelled-kinds", "one-layer",
)  # fmt: skip
Control = Literal["jolt", "displaces", "surer", "breaks"]
CONTROLS: tuple[Control, ...] = get_args(Control)


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
    belief: float = 1.5  # distance of each class's mean from the middle; a weak probe below 0.5
    templates: int = 4  # of question, in the world of that name
    missed: float = 0.3  # share of the samples whose exact tokens the finder misses, in its world
    control: Control = "jolt"  # what the neutral control does to a state
    seed: int = 0

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise unknown("world", self.world, WORLDS)
        if self.control not in CONTROLS:
            raise unknown("control", self.control, CONTROLS)
        for name, least in (("samples", 60), ("layers", 1), ("width", 2), ("templates", 2)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}. Accepted: {least} or more.")
        for name in ("mixture", "missed"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}. Accepted: between 0 and 1.")
        if not (self.strength >= 0 and self.noise > 0):
            raise UserError(
                f"strength is {self.strength} and noise {self.noise}. Accepted: strength of 0 or "
                "more, noise above 0."
            )
