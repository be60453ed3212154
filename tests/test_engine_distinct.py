"""Tokens that see the same go through the blocks once, and nothing comes out differently."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kit.engine_samples import CLOSE, PREFIX, cut_of, engine_states
from kit.plain import plain_states

from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.interventions import (
    ANSWER_ONLY,
    KNOCKOUT,
    NEUTRAL,
    QUESTION,
    Intervention,
    TokenPositions,
)
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_batch, row_for

AT = len(PREFIX)


def relation(number: int, subject: tuple[int, ...], answer: tuple[int, ...]) -> TokenPositions:
    """One question of a relation: the same words around a subject of its own."""
    turn = (40, 41, 42, *subject, 43, 44)
    exact = range(AT + 3, AT + 3 + len(subject))
    return TokenPositions(
        id=f"made:relation:{number}",
        ids=(*PREFIX, *turn, *answer),
        answer_at=AT + len(turn),
        question_tokens=tuple(range(AT, AT + len(turn) - 1)),
        exact_question=tuple(exact),
        exact_answer=tuple(range(AT + len(turn), AT + len(turn) + len(answer))),
        mass=(0.1,) * (AT + len(turn) + len(answer)),
    )


RELATION = [
    relation(0, (60, 61), (80,)),
    relation(1, (62, 63), (80,)),  # under the knockout the same as the first, whole
    relation(2, (64, 65), (81, 82)),
    relation(3, (66,), (80,)),  # a shorter subject: other positions behind it
    relation(4, (60, 67), (81, 83)),  # begins like the first
    replace(relation(5, (68, 69, 70), (80,)), exact_question=(AT + 3, AT + 5)),  # with a gap
]
KINDS = [
    KNOCKOUT,
    QUESTION,
    NEUTRAL,
    ANSWER_ONLY,
    replace(KNOCKOUT, name="post", where="post"),
    replace(KNOCKOUT, name="heads", heads=((1, 0), (2, 1))),
    replace(KNOCKOUT, name="window", layers="window:2"),
    Intervention(name="boost", boost=1.5),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_batch_gives_each_row_what_it_gets_alone(tiny_llama, kind):
    together = engine_states(tiny_llama, RELATION, kind, budget=10_000)
    alone = torch.cat([engine_states(tiny_llama, [sample], kind) for sample in RELATION])
    torch.testing.assert_close(together, alone, **CLOSE)


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
def test_shared_tokens_have_the_states_of_stock_attention(tiny, kind):
    plain = plain_states(tiny, [s.ids for s in RELATION], cut_of(RELATION, kind))
    torch.testing.assert_close(engine_states(tiny, RELATION, kind, budget=10_000), plain, **CLOSE)


def tokens_fed(lease: Lease, work) -> tuple[int, object]:
    """How many tokens the last block was given, and what `work` made."""
    fed: list[int] = []

    def note(module, args, kwargs):
        fed.append((args[0] if args else kwargs["hidden_states"]).shape[1])

    hook = lease.model.parts.blocks[-1].register_forward_pre_hook(note, with_kwargs=True)
    try:
        return (made := work()) and sum(fed), made
    finally:
        hook.remove()


def test_what_is_shared_is_fed_once(tiny_llama):
    with Lease(tiny_llama) as lease:
        prefix = read_prefix(lease, PREFIX)
        prompts = [s.ids[: s.answer_at] for s in RELATION]
        fed, grown = tokens_fed(lease, lambda: grow_trunk(lease, prefix, prompts))
        # Three tokens for all, the first subject's first token for two, the rest each its own.
        assert fed == 3 + sum(len(p) - AT - 3 for p in prompts) - 1
        two = RELATION[:5:2]  # subjects of two tokens, other answers
        rows = [row_for(grown.trunk, s, 2 * n, KNOCKOUT) for n, s in enumerate(two)]
        fed, _ = tokens_fed(lease, lambda: read_batch(lease, grown.trunk, rows) is not None)
        assert [len(row.ids) for row in rows] == [3, 4, 4]
        assert fed == 2 + 1 + 3  # the turn's end; one answer of a token; two that begin alike
        after = [replace(row, intervention=KINDS[4]) for row in rows]
        fed, _ = tokens_fed(lease, lambda: read_batch(lease, grown.trunk, after) is not None)
        assert fed == 3 + 4 + 4  # behind the softmax a cut key has still taken its share
