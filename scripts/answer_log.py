"""Write a log of (messages, answer, label) rows: a model's judged answers to atlas questions.

    python scripts/answer_log.py log.jsonl [--rows 2000] [--model bundled]

It stands in for a product's own log. Every other question has a system message, and abstentions are
left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import anchorscope as anc
from anchorscope.answers.generate import Answerer
from anchorscope.answers.judge import judge
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.lease import Lease

SYSTEM = {"role": "system", "content": "Answer with a name, in as few words as possible."}
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--model", default="bundled")
    options = parser.parse_args()
    model, questions = anc.load_model(options.model), list(anc.load_questions("atlas"))
    order = np.random.default_rng(0).permutation(len(questions))
    answerer, rows = Answerer(model, max_tokens=16), []
    with Lease(model) as lease:
        for start in range(0, len(order), BATCH):
            batch = [questions[n] for n in order[start : start + BATCH]]
            turns = [
                [*([SYSTEM] if n % 2 else []), {"role": "user", "content": question.text}]
                for n, question in enumerate(batch)
            ]
            prompts = [
                model.tokenizer.apply_chat_template(one, add_generation_prompt=True)["input_ids"]
                for one in turns
            ]
            prefix = read_prefix(lease, shared_prefix(prompts, stop=min(map(len, prompts)) - 1))
            written = answerer.answer(lease, prefix, [q.id for q in batch], prompts).answers
            for question, messages, answer in zip(batch, turns, written, strict=True):
                label = judge(answer.text, question.answers, question=question.text)
                if label != "abstain":
                    row = {"messages": messages, "answer": answer.text, "label": label}
                    rows.append(row | {"entity": question.entity})
            if len(rows) >= options.rows:
                break
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows[: options.rows]]
    options.out.write_text("".join(lines), encoding="utf-8")
    right = sum(row["label"] == "right" for row in rows[: options.rows])
    print(f"{len(lines)} rows, {right} of them right: {options.out}")


if __name__ == "__main__":
    main()
