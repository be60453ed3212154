"""Saliency, exactly, against stock attention over whole prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from kit.planted import made, random_probe
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import grow_trunk
from anchorscope.engine.interventions import positions_of as marked
from anchorscope.engine.lease import Lease
from anchorscope.evidence.saliency import saliency
from anchorscope.evidence.shards import prefix_of
from anchorscope.models import load_model

LAYER = 3


def samples_of(model):
    """Answers of several lengths; one with words before its entity, one with words after it."""
    # The first two end with their subject, within the reach of a sliding window.
    near = {"text": "is it {}?", "answer": "go"}
    plain = [made(model, 0, "tea", **near), made(model, 1, "a boat", **near, wrong=True)]
    late = made(model, 2, "x", text="so: {}, why?", answer="it is up", wrong=True)
    early = made(model, 3, "bees", answer="by day", spans=("what",))
    at = len(late.prompt_ids), len(early.prompt_ids)
    late = replace(late, exact_answer=tuple(range(at[0] + 6, at[0] + 8)))
    early = replace(early, exact_answer=tuple(range(at[1], at[1] + 2)))
    return [*plain, late, early]


def engine_saliency(model, samples, probe, *, budget=10_000):
    with Lease(model) as lease:
        prefix = prefix_of(lease, samples)
        prompts = [s.prompt_ids for s in samples]
        trunk = grow_trunk(lease, prefix, prompts).trunk
        wrong = [int(s.verdict == "wrong") for s in samples]
        marks = [marked(s) for s in samples]
        return saliency(lease, trunk, marks, wrong, probe, budget=Budget(budget))


def brute_saliency(model, sample, probe):
    """[loss, source, block] by autograd through transformers' own eager pass over everything."""
    mark, kept, before = marked(sample), [], model.lm.config._attn_implementation
    model.lm.set_attn_implementation("eager")
    hook = model.parts.blocks[probe.layer - 1].register_forward_hook(
        lambda m, i, o: kept.append((o[0] if isinstance(o, tuple) else o)[0, -1])
    )
    out = model.lm(torch.tensor([mark.ids]), output_attentions=True, use_cache=False)
    hook.remove()
    model.lm.set_attn_implementation(before)
    fold = probe.fold[sample.id]
    logit = kept[0] @ torch.tensor(probe.probes.weights[1, fold, probe.layer - 1])
    logit = logit + probe.probes.intercept[1, fold, probe.layer - 1]
    z = torch.tensor(float(sample.verdict == "wrong"))
    first = sample.exact_answer[0]
    after = torch.tensor([*mark.ids[first + 1 :], int(out.logits[0, -1].argmax())])
    losses = [
        torch.nn.functional.binary_cross_entropy_with_logits(logit, z.to(logit.dtype)),
        torch.nn.functional.cross_entropy(out.logits[0, first:], after),
    ]
    found = []
    for loss in losses:
        grads = torch.autograd.grad(loss, out.attentions, retain_graph=True, allow_unused=True)
        for keys in (mark.exact_question, mark.question_tokens):
            edges = torch.tensor(sample.exact_answer)[:, None], torch.tensor(keys)[None]
            pairs = zip(out.attentions, grads, strict=True)
            found.append(
                [
                    0.0
                    if g is None
                    else float((w.detach() * g).abs()[0][(slice(None), *edges)].sum())
                    for w, g in pairs
                ]
            )
    return np.array(found).reshape(2, 2, -1)


def test_saliency_is_that_of_autograd_through_the_plain_pass(tiny):
    samples = samples_of(tiny)
    probe = random_probe(tiny, samples, LAYER)
    ours = engine_saliency(tiny, samples, probe, budget=9)
    plain = np.stack([brute_saliency(tiny, sample, probe) for sample in samples])
    np.testing.assert_allclose(ours, plain, rtol=2e-3, atol=1e-6 * plain.max())
    # By position: nothing above the probe's layer, something everywhere else it may look.
    assert (ours[:, 0, :, LAYER:] == 0).all()
    assert (ours[:2, 0, :, :LAYER] > 0).all()
    assert (ours[:2, 1] > 0).all()


def test_micro_batches_give_the_same_numbers(tiny_llama):
    samples = samples_of(tiny_llama)
    probe = random_probe(tiny_llama, samples, LAYER)
    alone, together = (engine_saliency(tiny_llama, samples, probe, budget=b) for b in (1, 10_000))
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-8)


def test_saliency_is_zero_where_attention_is_blocked():
    """With a sliding window shorter than the way from the subject to the answer."""
    mistral = load_model(tiny_lm("mistral"), tokenizer=tiny_tokenizer())
    sample = made(mistral, 0, "tea", answer="go")
    ours = engine_saliency(mistral, [sample], random_probe(mistral, [sample], LAYER))
    assert (sample.exact_answer[0] - sample.exact_question[-1]) >= 7
    assert (ours[:, :, 0] == 0).all()


def test_nothing_stays_behind(tiny_llama):
    """No parameter learns, every one could before and can after, hooks and attention are back."""
    lm, samples = tiny_llama.lm, samples_of(tiny_llama)
    asks = [p.requires_grad for p in lm.parameters()]
    before = lm.config._attn_implementation
    engine_saliency(tiny_llama, samples, random_probe(tiny_llama, samples, LAYER))
    assert all(p.grad is None for p in lm.parameters())
    assert asks == [p.requires_grad for p in lm.parameters()] and all(asks)
    assert lm.config._attn_implementation == before
    with Lease(tiny_llama) as lease:
        assert not prefix_of(lease, samples).pairs[0][0].requires_grad
