"""What must fail, said before a run starts; and its tables, computed once more after it."""
