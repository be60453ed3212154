"""A trained detector in use: bound to its model, scoring, watching, saved and shared."""
