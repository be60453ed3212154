"""The other evidence: patching, question-only, saliency, heads, and what they show."""
