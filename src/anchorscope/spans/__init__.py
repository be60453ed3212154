"""Find the characters and tokens that carry a question's subject and an answer's entity."""
