"""Runs made up from a known truth, through the ordinary probes, tables, figures and report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anchorscope.simulate.worlds import WORLDS, Simulated, Truth, World, simulate_states

if TYPE_CHECKING:
    from anchorscope.simulate.run import simulate

__all__ = ["WORLDS", "Simulated", "Truth", "World", "simulate", "simulate_states"]


def __getattr__(name: str) -> Any:
    """`simulate` waits for torch, so it is imported when it is first used."""
    if name != "simulate":
        raise AttributeError(f"module 'anchorscope.simulate' has no attribute '{name}'")
    from anchorscope.simulate.run import simulate

    return simulate
