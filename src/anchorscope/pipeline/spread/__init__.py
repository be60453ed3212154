"""A run spread over processes and machines: the same shards, computed by whoever is free."""
