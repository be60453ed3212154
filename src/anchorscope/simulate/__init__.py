"""Runs made up from a known truth, through the ordinary probes, tables, figures and report."""

from anchorscope.simulate.run import simulate
from anchorscope.simulate.worlds import WORLDS, Simulated, Truth, World, simulate_states

__all__ = ["WORLDS", "Simulated", "Truth", "World", "simulate", "simulate_states"]
