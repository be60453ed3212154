"""Analyse states that were extracted elsewhere."""
