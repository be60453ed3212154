"""States and labels of a run in the formats that other tools read."""
