"""PopQA (Mallen et al. 2023): one Wikidata fact each, with the subject's page views.

A row: id 42, subj "Kanpur", prop "country", question "In what country is Kanpur?",
possible_answers ["India", ...], s_pop 12345.
"""

from __future__ import annotations

from anchorscope.datasets.source import HubPlace, Row, Source


def normal(row: Row) -> Row:
    """A row of popQA.tsv, or of the hub, which has the same columns, with ours."""
    if "possible_answers" not in row:
        return row
    return {
        "id": row.get("id"),
        "question": row.get("question"),
        "answers": row["possible_answers"],
        "subject": row.get("subj"),
        "relation": row.get("prop"),
        "popularity": row.get("s_pop"),
    }


POPQA = Source(
    name="popqa",
    title="PopQA",
    hub=HubPlace(
        path="akariasai/PopQA",
        split="test",
        columns=("id", "subj", "prop", "s_pop", "question", "possible_answers"),
    ),
    normal=normal,
    marks=(frozenset({"subj", "prop", "question", "possible_answers"}),),
    stems=("popqa",),
    formats="the authors' popQA.tsv",
)
