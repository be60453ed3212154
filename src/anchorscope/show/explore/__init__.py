"""The page of `anchorscope view`: from the figure to the samples to their tokens, in one file."""
