"""Four more sets of the hub by name; their rows need no more than other names for the columns.

SimpleQA (Wei et al. 2024) and its verified part (Haas et al. 2025): problem "Who received ...?",
answer "Michio Sugeno". WebQuestions (Berant et al. 2013): question "what language do jamaicans
speak?", answers ["Jamaican English"]. SciQ (Welbl et al. 2017), without its options: question
"What is the least dangerous radioactive decay?", correct_answer "alpha decay".
"""

from __future__ import annotations

from anchorscope.datasets.hub.columns import Columns
from anchorscope.datasets.source import HubPlace, Row, Source


def _source(name: str, title: str, path: str, split: str, columns: dict[str, str]) -> Source:
    named = Columns(columns)

    def normal(row: Row) -> Row:
        """A row of the hub under our names; one that has them stays as it is."""
        return named.normal(row) if set(named.needed) <= row.keys() else row

    return Source(
        name=name,
        title=title,
        hub=HubPlace(path=path, split=split, columns=named.needed),
        normal=normal,
        stems=(name.replace("-", ""),),
        formats=f"a file with the hub's columns ({', '.join(named.needed)})",
    )


SIMPLEQA = _source(
    "simpleqa", "SimpleQA", "basicv8vc/SimpleQA", "test",
    {"question": "problem", "answer": "answer"},
)  # fmt: skip
SIMPLEQA_VERIFIED = _source(
    "simpleqa-verified", "SimpleQA-Verified", "google/simpleqa-verified", "eval",
    {"id": "original_index", "question": "problem", "answer": "answer", "relation": "topic"},
)  # fmt: skip
WEBQUESTIONS = _source(
    "webquestions", "WebQuestions", "stanfordnlp/web_questions", "test",
    {"question": "question", "answers": "answers"},
)  # fmt: skip
SCIQ = _source(
    "sciq", "SciQ", "allenai/sciq", "test",
    {"question": "question", "answer": "correct_answer"},
)  # fmt: skip
READY = (SIMPLEQA, SIMPLEQA_VERIFIED, WEBQUESTIONS, SCIQ)
