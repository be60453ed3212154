"""Everything that knows where a file of a run lies."""
