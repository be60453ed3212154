"""How often a model answers with the bare answer, by prompt style and number of worked examples.

    python scripts/bare_answers.py --model bundled --data atlas,atlas-compare --limit 64

This is the measurement behind `--prompt auto`, on more questions. Bare means that the answer is
its entity and nothing else. The share of right answers stands beside it: a style that makes bare
answers out of nonsense would be no gain.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from anchorscope import load_model, load_questions
from anchorscope.answers.generate import Answerer
from anchorscope.answers.judge import judge
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import read_prefix, shared_prefix
from anchorscope.models.prompts import has_chat, make_prompt
from anchorscope.records import QuestionSet
from anchorscope.style import is_bare

ROWS = 32  # questions in one batch


def main() -> None:
    """One line of the table for each question set, style and number of worked examples."""
    asked = _arguments()
    model = load_model(asked.model)
    print(
        "| questions | style | examples | n | bare | right |\n| --- | --- | --- | --- | --- | --- |"
    )
    with Lease(model) as lease:
        for name in asked.data.split(","):
            given = load_questions(name, limit=asked.limit, seed=asked.seed)
            for style in ("chat", "text") if has_chat(model) else ("text",):
                for shots in (4, 0):
                    pairs = list(_answers(lease, given, style, shots, asked.max_tokens))
                    bare = sum(is_bare(text, q.text) for q, text in pairs) / len(pairs)
                    verdicts = [judge(text, q.answers, question=q.text) for q, text in pairs]
                    right = verdicts.count("right") / len(pairs)
                    print(
                        f"| {name} | {style} | {shots} | {len(pairs)} | {bare:.0%} | {right:.0%} |"
                    )


def _answers(
    lease: Lease, given: QuestionSet, style: str, shots: int, max_tokens: int
) -> Iterator[tuple]:
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
