"""Architectures of every make, tiny and random, against the plain way; more of them when slow."""

from __future__ import annotations

import pytest
import torch
from kit.architectures import DECODERS, build
from kit.held import CLOSE, largest_difference, outcome_of
from kit.tiny import older, tiny_tokenizer

from anchorscope.engine.check import check_model
from anchorscope.errors import UserError
from anchorscope.models import load_model

pytestmark = pytest.mark.skipif(
    older("transformers", "5.21"),
    reason="earlier releases lack some of these, and write the attention of others another way",
)
# Chunks, sinks, experts, low-rank keys, keys shared between blocks, and positions that begin
# behind padding.
SOME = ("llama4_text", "gpt_oss", "phimoe", "deepseek_v3", "gemma4_text", "roberta")
REFUSED = {
    "mamba": "information flows around",
    "jamba": "information flows around",
    "lfm2": "information flows around",
    **dict.fromkeys(("xglm", "gptj", "bloom", "mpt", "falcon"), "its attention is its own code"),
    "deepseek_v4": "more than one vector for each token",
}


@pytest.mark.parametrize("kind", SOME)
def test_right(kind):
    outcome = outcome_of(kind, load_model(build(kind), tokenizer=tiny_tokenizer()))
    assert outcome.verdict == "right", outcome


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_the_reason(kind):
    try:
        checks = check_model(load_model(build(kind), tokenizer=tiny_tokenizer()))
        seen = " ".join(check.seen for check in checks if not check.ok)
    except UserError as error:
        seen = str(error)
    assert REFUSED[kind] in seen


@pytest.mark.slow  # some, with the short pack of a run; scripts/architectures.py: all
@pytest.mark.parametrize("kind", DECODERS[::24])
def test_no_decoder_is_accepted_and_wrong(kind):
    try:
        lm = build(kind)
        with torch.no_grad():
            lm(torch.randint(3, 290, (1, 20)))
    except Exception as error:
        pytest.skip(f"no tiny model: {error}")
    try:
        model = load_model(lm, tokenizer=tiny_tokenizer())
    except UserError:
        return
    if all(check.ok for check in check_model(model)):
        assert largest_difference(model) < CLOSE
