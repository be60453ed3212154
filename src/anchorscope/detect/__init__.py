"""Train, evaluate and save detectors of wrong answers: baselines, probes and mixtures."""
