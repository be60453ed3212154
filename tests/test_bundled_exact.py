"""The bundled model, for real: one pass against a loop over k."""

from __future__ import annotations

import pytest
from kit.plain import plain_states

from anchorscope.answers.prompted import common_prefix, prompts_of
from anchorscope.datasets import load_questions
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.interventions import KNOCKOUT, TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_batch, row_for
from anchorscope.spans.question import find_spans


@pytest.fixture(scope="module")
def marks(bundled):
    """Three real questions, one worked example each, with the answer a made-up one."""
    given = load_questions("atlas", limit=3)
    found = find_spans(given.questions, finder="auto")
    prepared = prompts_of(bundled, given, found, style="text", shots=1)
    answer = tuple(bundled.tokenizer(" South Korea")["input_ids"])
    marked = [
        TokenPositions(
            id=p.question.id,
            ids=p.prompt_ids + answer,
            answer_at=len(p.prompt_ids),
            question_tokens=p.question_tokens,
            exact_question=p.exact_question,
        )
        for p in prepared
    ]
    return marked, common_prefix(prepared)


def test_one_pass_equals_passes_cut_up_to_k(bundled, marks):
    marked, shared = marks
    with Lease(bundled) as lease:
        prefix = read_prefix(lease, shared)
        prompts = [m.ids[: m.answer_at] for m in marked]
        trunk = grow_trunk(lease, prefix, prompts).trunk
        rows = [row_for(trunk, m, n, KNOCKOUT) for n, m in enumerate(marked)]
        fast = read_batch(lease, trunk, rows)
    assert max(len(row.ids) for row in rows) < min(len(m.ids) for m in marked) / 2
    for k in (1, bundled.blocks // 2, bundled.blocks):

        def cut(row: int, block: int, query: int, key: int, k: int = k) -> bool:
            exact = marked[row].exact_question
            return block <= k and key in exact and query not in exact

        plain = plain_states(bundled, [m.ids for m in marked], cut)[:, k - 1]
        ours = fast[:, k - 1]
        # Relative to the layer's size: the residual stream grows to hundreds on the way.
        far = (ours - plain).abs().max() / plain.abs().max()
        assert far < 1e-4, f"layer {k}"
