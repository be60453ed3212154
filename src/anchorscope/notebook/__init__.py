"""What a notebook or a page shows of a value: escaped HTML and small SVG, without a library."""
