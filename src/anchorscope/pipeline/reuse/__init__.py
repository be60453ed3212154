"""Answers and states of another run, taken over where nothing but the verdicts differs."""
