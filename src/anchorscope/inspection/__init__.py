"""One question under the eyes of a finished run: asked, cut, and read as the run's own were."""
