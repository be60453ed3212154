"""Sets of the hub beside the four with a file of their own: by address, and four more by name."""
