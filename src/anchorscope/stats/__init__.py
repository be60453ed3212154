"""Numbers with intervals, of nothing in particular."""
