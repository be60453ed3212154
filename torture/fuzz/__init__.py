"""Inputs that nobody would give on purpose, made by grammars, and what must hold for each."""
