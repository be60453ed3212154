"""Many models on many datasets: one run folder a model, and a page over all of them."""
