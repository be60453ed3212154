"""Synthetic samples and their states by the engine, for tests of the engine."""

from __future__ import annotations

import torch

from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.interventions import Intervention, TokenPositions, keys_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_rows, row_for
from anchorscope.models import Model

CLOSE = {"atol": 1e-4, "rtol": 0}
PREFIX = tuple(range(10, 22))
SEED = 3


def marked(number: int, turn: int, answer: int, exact: tuple[int, ...]) -> TokenPositions:
    """A made-up sample: prefix, a turn whose exact tokens are counted from its start, an answer."""
    generator = torch.Generator().manual_seed(number)
    own = torch.randint(1, 290, (turn + answer,), generator=generator).tolist()
    start = len(PREFIX)
    return TokenPositions(
        id=f"made:test:{number}",
        ids=PREFIX + tuple(own),
        answer_at=start + turn,
        question_tokens=tuple(range(start + 1, start + turn - 1)),
        exact_question=tuple(start + i for i in exact),
        content_tokens=tuple(start + i for i in sorted({1, *exact})),
        mass=tuple(torch.rand(start + turn + answer, generator=generator).tolist()),
    )


SAMPLES = [
    marked(0, 8, 1, (3, 4)),
    marked(1, 15, 4, (2, 3, 9, 10)),  # with a gap
    marked(2, 6, 2, (0, 1)),  # at the start of its turn
    marked(3, 9, 7, (6,)),
    marked(4, 5, 3, (1, 2, 3, 4)),  # up to the answer
]


def engine_states(
    model: Model,
    samples,
    intervention: Intervention,
    *,
    prefix=PREFIX,
    budget=64,
):
    """The engine's states [sample, layer, width] under an intervention."""
    out = torch.full((len(samples), model.blocks, model.parts.width), torch.nan)
    with Lease(model) as lease:
        front = read_prefix(lease, prefix)
        prompts = [s.ids[: s.answer_at] for s in samples]
        trunk = grow_trunk(lease, front, prompts).trunk
        rows = [row_for(trunk, s, n, intervention, seed=SEED) for n, s in enumerate(samples)]
        for batch, states in read_rows(lease, trunk, rows, budget=Budget(budget)):
            out[[row.number for row in batch]] = states.float().cpu()
    return out


def cut_of(samples, intervention: Intervention, blocks=lambda block: True):
    """The knockout as a `Cut` function for the reference in plain.py."""
    keys = [set(keys_of(s, intervention.keys, seed=SEED)) for s in samples]

    def cut(row: int, block: int, query: int, key: int) -> bool:
        # Prefix keys are cut for the question's own turn only.
        own = query >= len(PREFIX)
        return blocks(block) and key in keys[row] and query not in keys[row] and own

    return cut
