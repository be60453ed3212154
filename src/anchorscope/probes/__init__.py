"""Linear probes for z (1 = wrong), cross-fitted so that no probe reads what it learnt from."""
