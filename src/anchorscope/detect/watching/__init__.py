"""Scores while your own `generate` writes: a record of the passes, a stop and a streamer."""
