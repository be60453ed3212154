"""Define the published question sets: their place on the hub and the conversion of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from anchorscope.datasets.columns import Columns
from anchorscope.datasets.source import WITH_YES_NO, WITH_YES_NO_AGAIN, HubPlace, Row, Source


def _renamed(
    name: str,
    title: str,
    hub: HubPlace,
    columns: dict[str, str],
    *,
    formats: str = "",
    marks: tuple[frozenset[str], ...] = (),
) -> Source:
    """Describe a set whose columns only need to be renamed."""
    named = Columns(columns)

    def normal(row: Row) -> Row:
        """Rename the columns of a hub row; leave a row that has our columns as it is."""
        return named.normal(row) if set(named.needed) <= row.keys() else row

    return Source(
        name=name,
        title=title,
        hub=replace(hub, columns=named.needed),
        normal=normal,
        marks=marks,
        stems=(name.replace("-", ""),),
        formats=formats or f"a file with the hub's columns ({', '.join(named.needed)})",
    )


# PopQA (Mallen et al. 2023): one Wikidata fact each, with the subject's page views. A row: id 42,
# subj "Kanpur", prop "country", question "In what country is Kanpur?", possible_answers ["India",
# ...], s_pop 12345.
POPQA = _renamed(
    "popqa",
    "PopQA",
    HubPlace(path="akariasai/PopQA", split="test"),
    {
        "id": "id", "subject": "subj", "relation": "prop", "popularity": "s_pop",
        "question": "question", "answers": "possible_answers",
    },
    formats="the authors' popQA.tsv",
    marks=(frozenset({"subj", "prop", "question", "possible_answers"}),),
)  # fmt: skip


# TriviaQA (Joshi et al. 2017), unfiltered, without its documents: questions of quiz fans. A row:
# QuestionId "tc_1", Question "Which city is the capital of France?", Answer {"Value": "Paris",
# "Aliases": ["Paris", "Paris, France", ...]}.


def _triviaqa(row: Row) -> Row:
    """Convert a row of the authors' JSON or of the hub; the main answer comes first."""
    if isinstance(answer := row.get("Answer"), Mapping):
        return _trivia_row(row.get("QuestionId"), row.get("Question"), answer, "Value", "Aliases")
    if isinstance(answer := row.get("answer"), Mapping):
        return _trivia_row(row.get("question_id"), row.get("question"), answer, "value", "aliases")
    if row.get("canonical") and isinstance(answers := row.get("answers"), list):
        return {**row, "answers": [row["canonical"], *answers]}
    return row


def _trivia_row(key: object, text: object, answer: Row, value: str, aliases: str) -> Row:
    others = answer.get(aliases) or ()
    names = [answer.get(value), *(others if isinstance(others, Iterable) else ())]
    return {"id": key, "question": text, "answers": [name for name in names if name is not None]}


TRIVIAQA = Source(
    name="triviaqa",
    title="TriviaQA",
    hub=HubPlace(
        path="mandarjoshi/trivia_qa",
        config="unfiltered.nocontext",
        split="validation",
        columns=("question", "question_id", "answer"),
    ),
    normal=_triviaqa,
    marks=(
        frozenset({"Question", "QuestionId", "Answer"}),
        frozenset({"question", "question_id", "question_source", "answer"}),
    ),
    stems=("triviaqa", "trivia"),
    formats="the authors' unfiltered JSON ({'Data': [...]})",
)


# HotpotQA (Yang et al. 2018), without its paragraphs: bridges and comparisons. A row: _id
# "5a8b57f2", question "Are Paris and Lyon in the same country?", answer "yes", type "comparison".


def _hotpotqa(row: Row) -> Row:
    """Convert a row of the authors' JSON or of the hub; keep HotpotQA's own id."""
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
    normal=_hotpotqa,
    marks=(frozenset({"question", "answer", "type", "supporting_facts"}),),
    stems=("hotpotqa", "hotpot"),
    formats="the authors' JSON (a list of {_id, question, answer, type})",
)


# NQ-open (Lee et al. 2019): what people asked a search engine, in lower case. A row: question "what
# is the capital of france", answer ["Paris"].
NQ = _renamed(
    "nq",
    "NQ",
    HubPlace(path="google-research-datasets/nq_open", split="validation"),
    {"question": "question", "answers": "answer"},
    formats="the authors' JSON lines ({question, answer: [...]})",
)
# Wei et al. 2024; the verified part is by Haas et al. 2025. A row: problem "Who received ...?",
# answer "Michio Sugeno".
SIMPLEQA = _renamed(
    "simpleqa", "SimpleQA", HubPlace(path="basicv8vc/SimpleQA", split="test"),
    {"question": "problem", "answer": "answer"},
)  # fmt: skip
SIMPLEQA_VERIFIED = _renamed(
    "simpleqa-verified", "SimpleQA-Verified",
    HubPlace(path="google/simpleqa-verified", split="eval"),
    {"id": "original_index", "question": "problem", "answer": "answer", "relation": "topic"},
)  # fmt: skip
# Berant et al. 2013. A row: question "what language do jamaicans speak?", answers ["Jamaican
# English"].
WEBQUESTIONS = _renamed(
    "webquestions", "WebQuestions", HubPlace(path="stanfordnlp/web_questions", split="test"),
    {"question": "question", "answers": "answers"},
)  # fmt: skip
# Welbl et al. 2017, without its options. A row: question "What is the least dangerous radioactive
# decay?", correct_answer "alpha decay".
SCIQ = _renamed(
    "sciq", "SciQ", HubPlace(path="allenai/sciq", split="test"),
    {"question": "question", "answer": "correct_answer"},
)  # fmt: skip

PUBLISHED = (POPQA, TRIVIAQA, HOTPOTQA, NQ, SIMPLEQA, SIMPLEQA_VERIFIED, WEBQUESTIONS, SCIQ)
