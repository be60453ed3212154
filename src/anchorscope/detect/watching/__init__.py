"""Somebody else's `generate`, watched: what passes through the model, and scores of it."""
