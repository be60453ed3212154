"""The model's own output under a pass, and the retest, equal plain transformers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit.engine_samples import PREFIX, SAMPLES, SEED, cut_of
from kit.plain import plain_logits

from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.interventions import (
    ANSWER_ONLY,
    CONTENT,
    KNOCKOUT,
    NEUTRAL,
    QUESTION,
    RETEST,
    Intervention,
    keys_of,
)
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_rows_with_output, row_for, unchanged_row


def engine_outputs(model, cuts, *, budget=64):
    """The output [cut, sample, 3] by the engine, rows of all passes mixed."""
    out = torch.full((len(cuts), len(SAMPLES), 3), torch.nan)
    with Lease(model) as lease:
        front = read_prefix(lease, PREFIX)
        prompts = [mark.ids[: mark.answer_at] for mark in SAMPLES]
        trunk = grow_trunk(lease, front, prompts).trunk
        rows = [
            unchanged_row(mark, n, cut)
            if cut.heads == ()
            else row_for(trunk, mark, n, cut, seed=SEED)
            for cut in cuts
            for n, mark in enumerate(SAMPLES)
        ]
        for batch, _, output in read_rows_with_output(lease, trunk, rows, budget=Budget(budget)):
            for row, values in zip(batch, output, strict=True):
                out[cuts.index(row.intervention), row.number] = values
    return out


def plain_output(logits, ids, answer_at) -> list[float]:
    """The same three numbers from the logits [token, vocabulary] at every position of a row."""
    before = logits[answer_at - 1 : len(ids) - 1].log_softmax(dim=-1)
    own = before[torch.arange(len(before)), list(ids[answer_at:])]
    rank = 1 + int((before[0] > own[0]).sum())
    return [own[0].item(), own.mean().item(), float(rank)]


def test_output_under_every_pass_equals_plain_transformers(tiny):
    """Five architectures, against an explicit mask for every edge that is cut."""
    cuts = (KNOCKOUT, NEUTRAL, CONTENT, QUESTION, RETEST)
    found = engine_outputs(tiny, cuts)
    for cut, own in zip(cuts, found, strict=True):
        edges = (lambda *_: False) if cut.heads == () else cut_of(SAMPLES, cut)
        logits = plain_logits(tiny, [mark.ids for mark in SAMPLES], edges)
        plain = [
            plain_output(row, mark.ids, mark.answer_at)
            for mark, row in zip(SAMPLES, logits, strict=True)
        ]
        torch.testing.assert_close(own[:, :2], torch.tensor(plain)[:, :2], atol=1e-4, rtol=0)
        assert own[:, 2].tolist() == [ranks[2] for ranks in plain]


def test_output_without_the_question_equals_plain_transformers(tiny):
    (found,) = engine_outputs(tiny, (ANSWER_ONLY,))
    for mark, own in zip(SAMPLES, found, strict=True):
        ids = (mark.ids[0], *mark.ids[mark.answer_at :])
        (logits,) = plain_logits(tiny, [ids], lambda *_: False)
        assert own.tolist() == pytest.approx(plain_output(logits, ids, 1), abs=1e-4)


def test_output_does_not_depend_on_what_shares_a_batch(tiny_llama):
    """One row at a time, and all together; the limit on logits splits batches as well."""
    cuts = (KNOCKOUT, NEUTRAL, QUESTION, ANSWER_ONLY)
    alone, together = (engine_outputs(tiny_llama, cuts, budget=b) for b in (1, 4096))
    torch.testing.assert_close(alone, together, atol=1e-4, rtol=0)


def test_a_cut_up_to_the_answer_still_tells_its_first_word():
    """The last token of the prompt may be cut from the answer: it is read all the same."""
    mark = SAMPLES[4]
    assert mark.answer_at - 1 in mark.exact_question
    trunk: Any = SimpleNamespace(prefix=PREFIX, pairs=range(4))
    row = row_for(trunk, mark, 0, KNOCKOUT)
    assert mark.answer_at - 1 in row.at and row.answer == len(mark.ids) - mark.answer_at


def test_windows_and_reweighting_have_no_output():
    assert KNOCKOUT.has_output and ANSWER_ONLY.has_output and RETEST.has_output
    assert not Intervention(name="w", layers="window:2").has_output
    assert not Intervention(name="b", boost=1.0).has_output


def test_a_question_without_other_content_has_no_content_keys():
    mark = replace(SAMPLES[0], content_tokens=SAMPLES[0].exact_question)
    assert keys_of(mark, "content", seed=0) == ()
    assert keys_of(SAMPLES[0], "content", seed=0) == (SAMPLES[0].question_tokens[0],)
