"""What bounds a pass: memory, processes that run out of it together, one lease at a time."""
