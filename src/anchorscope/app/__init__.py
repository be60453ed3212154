"""The page of `anchorscope app`: a model asked live, on this machine alone."""
