"""The forward pass: answers, clean states and states under interventions."""
