"""Test helpers: tiny models, a reference implementation, synthetic runs and worlds."""
