"""Commands around a run: get weights, ask what power it had, read its verdicts, verify, export."""
