"""A model behind OpenAI's protocol, each answer with the score of a detector."""
