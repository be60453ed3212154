"""Detectors of wrong answers: baselines, probes and mixtures, judged alike, saved and used."""
