"""Commands around a run: get weights, ask how much power it had, read its verdicts, export it."""
