"""All targets, in the order in which they are tried."""

from __future__ import annotations

from torture.fuzz import (
    asked,
    files,
    folders,
    judged,
    links,
    marked,
    network,
    options,
    pages,
    studies,
    tensors,
)
from torture.fuzz.target import Target


def every_target() -> list[Target]:
    """Each target once."""
    modules = (
        judged,
        files,
        marked,
        asked,
        options,
        folders,
        tensors,
        pages,
        studies,
        network,
        links,
    )
    return [target for module in modules for target in module.TARGETS]
