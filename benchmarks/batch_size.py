"""Count the bundled model's answers that change with the batch size, in bfloat16."""

from __future__ import annotations

import anchorscope as anc
from anchorscope.answers.generate import Answerer
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import read_prefix, shared_prefix
from anchorscope.engine.lease import Lease
from anchorscope.models.prompts import make_prompts

SIZES = (4096, 256)  # tokens of a batch


def main() -> None:
    """Print the number of answers that differ between the batch sizes."""
    model = anc.load_model("bundled", device="cpu", dtype="bfloat16")
    questions = anc.load_questions("atlas", limit=96)
    prompts = make_prompts(model, [q.text for q in questions], shots=questions.shots, style="text")
    ids = [prompt.ids for prompt in prompts]
    answerer = Answerer(model, max_tokens=16)
    with Lease(model) as lease:
        prefix = read_prefix(lease, shared_prefix(ids, stop=min(map(len, ids)) - 1))

        def work(batch: list[int]) -> dict[int, tuple[int, ...]]:
            own = [ids[n] for n in batch]
            answers = answerer.answer(lease, prefix, [str(n) for n in batch], own).answers
            return dict(zip(batch, (answer.token_ids for answer in answers), strict=True))

        def length(n: int) -> int:
            return len(ids[n]) - len(prefix)

        by_size = []
        for size in SIZES:
            parts = in_batches(range(len(ids)), work, length=length, then=int, budget=Budget(size))
            by_size.append({n: token_ids for _, part in parts for n, token_ids in part.items()})
    differ = sum(by_size[0][n] != by_size[1][n] for n in range(len(ids)))
    print(f"{differ} of {len(ids)} answers differ between batches of {SIZES} tokens")


if __name__ == "__main__":
    main()
