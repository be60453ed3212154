"""States that somebody else extracted: read from a file, checked, and analysed as a run's."""
