"""Detectors that compare several answers to one question: drawn, grouped by meaning, scored."""
