"""Linear probes for z (1 = wrong), cross-fitted: each probe reads held-out questions only."""
