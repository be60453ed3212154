"""Weights by a short name: what `anchorscope get` fetches, from where, and its checksum."""
