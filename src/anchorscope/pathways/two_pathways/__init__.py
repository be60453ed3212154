"""Whether samples fall into two pathways: looks within classes, the finding, its power."""
