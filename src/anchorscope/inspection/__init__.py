"""Inspect one question with the probes of a finished run."""
