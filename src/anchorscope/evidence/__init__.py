"""The other evidence (METHOD §5): patching, question-only, saliency, heads, and what they show."""
