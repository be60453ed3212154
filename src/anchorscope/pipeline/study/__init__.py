"""Studies: run many models on many datasets, and write one page over all runs."""
