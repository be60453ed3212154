"""Answers: the model writes them, the judge says whether they are right."""
