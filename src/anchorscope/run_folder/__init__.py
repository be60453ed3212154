"""Write, read and verify run folders."""
