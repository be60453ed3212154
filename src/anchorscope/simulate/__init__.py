"""Simulate runs with a known truth, and analyse them like real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anchorscope.simulate.worlds import WORLDS, Simulated, Truth, World, simulate_states

if TYPE_CHECKING:
    from anchorscope.simulate.run import simulate

__all__ = ["WORLDS", "Simulated", "Truth", "World", "simulate", "simulate_states"]


def __getattr__(name: str) -> Any:
    """Import `simulate` on first use: it needs torch, which is slow to import."""
    if name != "simulate":
        raise AttributeError(f"module 'anchorscope.simulate' has no attribute '{name}'")
    from anchorscope.simulate.run import simulate

    return simulate
