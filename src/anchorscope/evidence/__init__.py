"""Evidence beside the knockout: patching, answer-only, saliency, heads, and their tables."""
