"""Prepare the job of `peers.py` as plain data: tokens, positions and stop tokens.

    python benchmarks/peers_job.py --questions 128 [--model bundled] --out FILE

The job is prepared outside the timed part and is the same for each way. The prompts and the
positions of the subject are anchorscope's; the answers that fix the probe positions are those of
plain transformers, so that only that way is compared with itself. The ways read this file without
anchorscope, which need not be installed with them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

SHOTS, MAX_TOKENS, BATCH = 4, 12, 32


@dataclass(frozen=True)
class Job:
    """The job: prompts to answer, and answered rows at whose last token states are read."""

    folder: str  # of the model
    device: str
    dtype: str
    stop_ids: list[int]
    prompts: list[list[int]]
    exact: list[list[int]]  # E_Q of each prompt: token positions, never the first token
    answers: list[list[int]]  # what plain transformers answers
    asked: list[int]  # the prompts that have a probe position
    rows: list[list[int]]  # prompt + answer of each `asked` prompt, up to the probe position

    @property
    def cut(self) -> list[list[int]]:
        """The subject's positions in each of `rows`."""
        return [self.exact[number] for number in self.asked]

    def first(self, questions: int) -> Job:
        """The same job on the first few questions."""
        kept = sum(number < questions for number in self.asked)
        lists = {"prompts": questions, "exact": questions, "answers": questions}
        lists |= {"asked": kept, "rows": kept}
        return replace(self, **{name: getattr(self, name)[:n] for name, n in lists.items()})

    def save(self, file: Path) -> Path:
        file.write_text(json.dumps(asdict(self)))
        return file

    @staticmethod
    def load(file: Path) -> Job:
        return Job(**json.loads(file.read_text()))


def batches(rows: Sequence[Sequence[int]], size: int = BATCH) -> list[list[int]]:
    """Group row numbers into batches of similar length."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def until(stop_ids: Sequence[int], line: Sequence[int]) -> list[int]:
    """The tokens of a line before its first stop token."""
    return list(takewhile(lambda token: token not in stop_ids, line))


def make_job(questions: int, model_name: str) -> Job:
    """Make the job for a model from atlas questions, with the answers of plain transformers."""
    from way_transformers_expert import generate, load

    from anchorscope import load_model, load_questions
    from anchorscope.answers.prompted import prompts_of
    from anchorscope.models.prompts import stop_ids
    from anchorscope.spans.question import find_spans

    model = load_model(model_name)
    given = load_questions("atlas", limit=questions)
    found = find_spans(given.questions, finder="auto")
    prepared = prompts_of(model, given, found, style="text", shots=SHOTS)
    job = Job(
        folder=str(model.lm.config.name_or_path),
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        stop_ids=stop_ids(model),
        prompts=[list(p.prompt_ids) for p in prepared],
        exact=[[at for at in p.exact_question if at > 0] for p in prepared],
        answers=[],
        asked=[],
        rows=[],
    )
    job = replace(job, answers=generate(load(job), job))
    asked, rows = [], []
    for number, p in enumerate(prepared):
        probe = _probe(model, p.question.text, job.answers[number])
        if job.exact[number] and probe is not None:
            asked.append(number)
            rows.append(job.prompts[number] + job.answers[number][: probe + 1])
    return replace(job, asked=asked, rows=rows)


def _probe(model: Any, question: str, token_ids: list[int]) -> int | None:
    """The number of the answer token at the probe position; None without an entity."""
    from anchorscope.answers.generate import answer_offsets
    from anchorscope.records import Answer
    from anchorscope.spans.answer import answer_span
    from anchorscope.spans.characters import tokens_of

    ids = tuple(token_ids)
    text = model.tokenizer.decode(ids, skip_special_tokens=True).strip()
    answer = Answer(id="", text=text, token_ids=ids, log_probs=(), first_entropy=0.0, finished=True)
    span = answer_span(text, question=question)
    tokens = tokens_of([span], answer_offsets(model, answer)) if span else ()
    return tokens[-1] if tokens else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    job = make_job(given.questions, given.model).save(given.out)
    print(f"{given.questions} questions in {job}")


if __name__ == "__main__":
    main()
