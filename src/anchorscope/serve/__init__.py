"""Serve a model with OpenAI's API, and a detector's score on each answer."""
