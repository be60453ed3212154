"""Hand-made samples and probes, and a model whose information flow uses one known head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anchorscope.evidence.shards import HeldOut
from anchorscope.models import Model, load_model
from anchorscope.models.prompts import make_prompt
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import Answer, Question, Sample, Shot, Span
from anchorscope.spans.characters import tokens_of
from kit.tiny import tiny_tokenizer

SHOTS = (Shot(question="who made it?", answer="nn"), Shot(question="where is it?", answer="mm"))
BLOCK, HEAD = 3, 1  # of the planted model: the only way from the question to the answer
LETTERS = "BCDEFGHI"  # its subjects; the first half are right, the second half wrong
_CONTENT, _IS_SUBJECT, _EVERY, _COPY = slice(0, 8), 8, 10, slice(16, 24)
_WIDTH, _HEADS, _BLOCKS = 64, 4, 4


def made(
    model: Model,
    number: int,
    subject: str,
    *,
    text: str = "what is {} for?",
    answer: str = "nope",
    wrong: bool = False,
    dataset: str = "made",
    relation: str | None = None,
    popularity: float | None = None,
    spans: Sequence[str] = (),
) -> Sample:
    """A sample that asks `text` about `subject`; its answer is one entity from the first token."""
    asked = text.format(subject)
    marks = tuple(Span(asked.index(s), asked.index(s) + len(s)) for s in (*spans, subject))
    prompt = make_prompt(model, asked, shots=SHOTS, style="text")
    written = len(prompt.ids)
    ids = tuple(model.tokenizer(answer, add_special_tokens=False)["input_ids"])
    id = f"{dataset}:test:{number}"
    answers = (f"all about {subject}",)  # shared with no other sample
    known = {"relation": relation, "popularity": popularity, "entity": f"{dataset}-{subject}"}
    return Sample(
        question=Question(id=id, dataset=dataset, text=asked, answers=answers, **known),
        answer=Answer(
            id=id,
            text=answer,
            token_ids=ids,
            log_probs=(-1.0,) * len(ids),
            first_entropy=1.0,
            finished=True,
        ),
        verdict="wrong" if wrong else "right",
        finder="given",
        spans=tuple(sorted(marks)),
        answer_span=Span(0, len(answer)),
        prompt_ids=prompt.ids,
        question_tokens=tokens_of([prompt.question], prompt.offsets),
        exact_question=tokens_of(marks, prompt.offsets, start=prompt.question.start),
        exact_answer=tuple(range(written, written + len(ids))),
    )


def random_probe(model: Model, samples: Sequence[Sample], layer: int, folds: int = 3) -> HeldOut:
    """Probes with random weights, different in each fold, so that a wrong fold is noticed."""
    draw = np.random.default_rng(5)
    shape = (3, folds, model.blocks, model.parts.width)
    return HeldOut(
        probes=ProbeSet(
            probes=("a", "paper", "b"),
            weights=draw.normal(scale=0.05, size=shape).astype(np.float32),  # no saturated loss
            intercept=draw.normal(size=shape[:3]),
            n_train=np.ones((3, folds), dtype=int),
            C=1.0,
            balance="none",
        ),
        fold={sample.id: n % folds for n, sample in enumerate(samples)},
        layer=layer,
    )


def planted_model(noise: float = 0.02) -> Model:
    """A model that answers with the subject's letter in lower case, copied by one known head.

    Residual dimensions: which letter, whether it is a subject, a constant one, and the copy.
    Everything else is noise, so that a test must tell the head from others.
    """
    config = LlamaConfig(
        vocab_size=300, hidden_size=_WIDTH, num_hidden_layers=_BLOCKS, num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS, head_dim=16, intermediate_size=32, tie_word_embeddings=False,
        max_position_embeddings=512, initializer_range=noise,
        rope_parameters={"rope_type": "default", "rope_theta": 1e8},
    )  # fmt: skip
    torch.manual_seed(0)
    lm = LlamaForCausalLM(config).eval()
    vocabulary = tiny_tokenizer().get_vocab()
    attention = lm.model.layers[BLOCK - 1].self_attn
    own = range(HEAD * 16, HEAD * 16 + 16)
    with torch.no_grad():
        embedding = lm.model.embed_tokens.weight
        embedding[:, :32] = 0
        embedding[:, _EVERY] = 1
        for place, letter in enumerate(LETTERS):
            embedding[vocabulary[letter], [place, _IS_SUBJECT]] = 1
            lm.lm_head.weight[vocabulary[letter.lower()], _COPY.start + place] = 1
        # The slowest pair of the rotary embedding hardly turns: distance does not affect scores.
        attention.q_proj.weight[own[7], _EVERY] = 1.5
        attention.k_proj.weight[own[7], _IS_SUBJECT] = 1.5
        for place in range(8):
            attention.v_proj.weight[own[place], _CONTENT.start + place] = 1
            attention.o_proj.weight[_COPY.start + place, own[place]] = 1
    return load_model(lm, tokenizer=tiny_tokenizer())


def planted_samples(model: Model) -> list[Sample]:
    """One sample per letter with the planted model's answer; the second half are wrong."""
    return [
        made(model, n, letter, answer=letter.lower(), wrong=n >= 4, relation="use")
        for n, letter in enumerate(LETTERS)
    ]


def planted_probe(model: Model, samples: Sequence[Sample], layer: int) -> HeldOut:
    """Probes that separate the second half of the letters from the first by the copy alone."""
    weights = np.zeros((1, 2, model.blocks, _WIDTH), dtype=np.float32)
    weights[..., 16:20], weights[..., 20:24] = -1, 1
    of = {"intercept": np.zeros((1, 2, model.blocks)), "n_train": np.ones((1, 2), dtype=int)}
    probes = ProbeSet(probes=("paper",), weights=weights, C=1.0, balance="none", **of)
    fold = {sample.id: n % 2 for n, sample in enumerate(samples)}
    return HeldOut(probes=probes, fold=fold, layer=layer)


def known(model) -> list[Sample]:
    """Samples whose best patching donor is known by construction."""
    given = [
        ("tea", "drink", 100.0), ("TEA", "drink", 100.0), ("ale", "drink", 120.0),
        ("long island", "drink", 110.0), ("gin", "drink", 1e6), ("zinc", "metal", 100.0),
        ("lone", None, None),
    ]  # fmt: skip
    return [
        made(model, n, subject, relation=relation, popularity=popularity)
        for n, (subject, relation, popularity) in enumerate(given)
    ]


def by_kind(donors, kind):
    return {donor.id: donor for donor in donors if donor.kind == kind}
