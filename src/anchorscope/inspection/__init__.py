"""One question in detail, with the probes of a finished run."""
