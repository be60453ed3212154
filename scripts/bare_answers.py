"""How often a model answers with the bare answer, by prompt style and number of worked examples.

    python scripts/bare_answers.py --model bundled --data atlas,atlas-compare --limit 64

This is the measurement behind `--prompt auto`, on more questions. Bare: the answer is its entity
and nothing else, as `anchorscope.style.is_bare` sees it. Restates: the answer has a subject of the
question in it and more besides. Right: as judged; a style that makes bare answers out of nonsense
would be no gain.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from anchorscope import load_model, load_questions
from anchorscope.answers.generate import Answerer
from anchorscope.answers.judge import judge
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.models.prompts import has_chat, make_prompt
from anchorscope.pipeline.prepare import is_bare
from anchorscope.records import Question, QuestionSet

ROWS = 32  # questions in one batch


def main() -> None:
    """One line of the table for each question set, style and number of worked examples."""
    asked = _arguments()
    model = load_model(asked.model)
    print("| questions | style | examples | n | bare | restates | right |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with Lease(model) as lease:
        for name in asked.data.split(","):
            given = load_questions(name, limit=asked.limit, seed=asked.seed)
            for style in ("chat", "text") if has_chat(model) else ("text",):
                for shots in (4, 0):
                    pairs = list(_answers(lease, given, style, shots, asked.max_tokens))
                    shares = " | ".join(f"{share:.0%}" for share in _shares(pairs))
                    print(f"| {name} | {style} | {shots} | {len(pairs)} | {shares} |", flush=True)


def _shares(pairs: Sequence[tuple[Question, str]]) -> Iterator[float]:
    """The shares of bare, restating and right answers."""
    for hit in (_bare, _restates, _right):
        yield sum(hit(question, text) for question, text in pairs) / len(pairs)


def _bare(question: Question, text: str) -> bool:
    return is_bare(text, question.text)


def _restates(question: Question, text: str) -> bool:
    # "the " may stand beside a subject that is itself the answer, as in atlas-compare.
    return any(s in text and len(text) - len(s) > len("the ") for s in question.subjects)


def _right(question: Question, text: str) -> bool:
    return judge(text, question.answers, question=question.text) == "right"


def _answers(
    lease: Lease, given: QuestionSet, style: str, shots: int, max_tokens: int
) -> Iterator[tuple[Question, str]]:
    """Each question with the text of its answer."""
    answerer = Answerer(lease.model, max_tokens=max_tokens)
    kept = given.shots[:shots]
    for start in range(0, len(given), ROWS):
        batch = given.questions[start : start + ROWS]
        ids = [make_prompt(lease.model, q.text, shots=kept, style=style).ids for q in batch]
        prefix = read_prefix(lease, shared_prefix(ids, stop=min(map(len, ids)) - 1))
        said = answerer.answer(lease, prefix, [q.id for q in batch], ids).answers
        yield from zip(batch, (answer.text for answer in said), strict=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--data", default="atlas,atlas-compare")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=16)
    return parser.parse_args()


if __name__ == "__main__":
    main()
