"""The published claims: each a number, the region in which it holds, and a decision."""
