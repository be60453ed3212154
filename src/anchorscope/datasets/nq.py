"""NQ-open (Lee et al. 2019): what people asked a search engine, in lower case.

A row: question "what is the capital of france", answer ["Paris"].
"""

from __future__ import annotations

from anchorscope.datasets.source import HubPlace, Row, Source


def normal(row: Row) -> Row:
    """A row of the authors' JSON lines, of the hub, or of ours; NQ-open has no ids."""
    return row if "answers" in row else {**row, "answers": row.get("answer")}


NQ = Source(
    name="nq",
    title="NQ",
    hub=HubPlace(
        path="google-research-datasets/nq_open",
        split="validation",
        columns=("question", "answer"),
    ),
    normal=normal,
    stems=("nq",),
    formats="the authors' JSON lines ({question, answer: [...]})",
)
