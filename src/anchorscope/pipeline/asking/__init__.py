"""What becomes of an answer: it is judged, and its entity found."""
