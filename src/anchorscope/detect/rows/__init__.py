"""Files of questions: read, scored as it goes, and written with their scores."""
