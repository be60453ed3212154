"""The page of `anchorscope view`: figure, samples and tokens of a run in one HTML file."""
