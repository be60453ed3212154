"""Long work, and what it takes of the machine: memory, threads, open files."""
