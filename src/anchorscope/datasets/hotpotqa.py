"""HotpotQA (Yang et al. 2018), without its paragraphs: bridges and comparisons.

A row: _id "5a8b57f2", question "Are Paris and Lyon in the same country?", answer "yes",
type "comparison".
"""

from __future__ import annotations

from anchorscope.datasets.source import WITH_YES_NO, WITH_YES_NO_AGAIN, HubPlace, Row, Source


def normal(row: Row) -> Row:
    """A row of the authors' JSON, of the hub, or of ours, under HotpotQA's own id."""
    key = row.get("_id") or row.get("original_id") or row.get("id")
    answers = row["answers"] if "answers" in row else row.get("answer")
    return {**row, "id": key, "answers": answers, "relation": row.get("type")}


HOTPOTQA = Source(
    name="hotpotqa",
    title="HotpotQA",
    shots=WITH_YES_NO,
    retest_shots=WITH_YES_NO_AGAIN,
    hub=HubPlace(
        path="hotpotqa/hotpot_qa",
        config="distractor",
        split="validation",
        columns=("id", "question", "answer", "type"),
    ),
    normal=normal,
    marks=(frozenset({"question", "answer", "type", "supporting_facts"}),),
    stems=("hotpotqa", "hotpot"),
    formats="the authors' JSON (a list of {_id, question, answer, type})",
)
