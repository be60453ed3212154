"""Generate answers with the model, and judge whether they are right."""
