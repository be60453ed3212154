"""The order of a run, from questions to report."""
