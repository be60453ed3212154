"""Files of questions: read, scored a portion at a time, and written with their scores."""
