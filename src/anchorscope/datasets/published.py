"""The question sets of the field: where their rows are, and how a row becomes one of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anchorscope.datasets.columns import Columns
from anchorscope.datasets.source import WITH_YES_NO, WITH_YES_NO_AGAIN, HubPlace, Row, Source

# PopQA (Mallen et al. 2023): one Wikidata fact each, with the subject's page views. A row: id 42,
# subj "Kanpur", prop "country", question "In what country is Kanpur?", possible_answers ["India",
# ...], s_pop 12345.


def _popqa(row: Row) -> Row:
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
    normal=_popqa,
    marks=(frozenset({"subj", "prop", "question", "possible_answers"}),),
    stems=("popqa",),
    formats="the authors' popQA.tsv",
)


# TriviaQA (Joshi et al. 2017), unfiltered, without its documents: questions of quiz fans. A row:
# QuestionId "tc_1", Question "Which city is the capital of France?", Answer {"Value": "Paris",
# "Aliases": ["Paris", "Paris, France", ...]}.


def _triviaqa(row: Row) -> Row:
    """A row of the authors' JSON, of the hub, or of ours, with the main answer first."""
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
    normal=_hotpotqa,
    marks=(frozenset({"question", "answer", "type", "supporting_facts"}),),
    stems=("hotpotqa", "hotpot"),
    formats="the authors' JSON (a list of {_id, question, answer, type})",
)


# NQ-open (Lee et al. 2019): what people asked a search engine, in lower case. A row: question "what
# is the capital of france", answer ["Paris"].


def _nq(row: Row) -> Row:
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
    normal=_nq,
    stems=("nq",),
    formats="the authors' JSON lines ({question, answer: [...]})",
)


def _renamed(name: str, title: str, path: str, split: str, columns: dict[str, str]) -> Source:
    """A set whose rows need no more than other names for the columns."""
    named = Columns(columns)

    def normal(row: Row) -> Row:
        """A row of the hub under our names; one that has them already stays as it is."""
        return named.normal(row) if set(named.needed) <= row.keys() else row

    return Source(
        name=name,
        title=title,
        hub=HubPlace(path=path, split=split, columns=named.needed),
        normal=normal,
        stems=(name.replace("-", ""),),
        formats=f"a file with the hub's columns ({', '.join(named.needed)})",
    )


# Wei et al. 2024; the verified part is by Haas et al. 2025. A row: problem "Who received ...?",
# answer "Michio Sugeno".
SIMPLEQA = _renamed(
    "simpleqa", "SimpleQA", "basicv8vc/SimpleQA", "test",
    {"question": "problem", "answer": "answer"},
)  # fmt: skip
SIMPLEQA_VERIFIED = _renamed(
    "simpleqa-verified", "SimpleQA-Verified", "google/simpleqa-verified", "eval",
    {"id": "original_index", "question": "problem", "answer": "answer", "relation": "topic"},
)  # fmt: skip
# Berant et al. 2013. A row: question "what language do jamaicans speak?", answers ["Jamaican
# English"].
WEBQUESTIONS = _renamed(
    "webquestions", "WebQuestions", "stanfordnlp/web_questions", "test",
    {"question": "question", "answers": "answers"},
)  # fmt: skip
# Welbl et al. 2017, without its options. A row: question "What is the least dangerous radioactive
# decay?", correct_answer "alpha decay".
SCIQ = _renamed(
    "sciq", "SciQ", "allenai/sciq", "test",
    {"question": "question", "answer": "correct_answer"},
)  # fmt: skip

PUBLISHED = (POPQA, TRIVIAQA, HOTPOTQA, NQ, SIMPLEQA, SIMPLEQA_VERIFIED, WEBQUESTIONS, SCIQ)
