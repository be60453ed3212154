"""Spans: which characters, and so which tokens, carry the subject and the answer."""
