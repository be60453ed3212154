"""Make runs and studies, from questions to report."""
