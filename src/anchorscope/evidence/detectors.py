"""Extra inputs of detectors: P(True), and states under reweighted attention.

P(True): a new prompt asks the model whether its own answer is true.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import GrownTrunk, read_prefix, shared_prefix
from anchorscope.engine.interventions import reweightings
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import Piece, PromptMaker
from anchorscope.evidence.shards import Shards, over_prompts
from anchorscope.models import Model
from anchorscope.models.prompts import make_prompts
from anchorscope.records import Sample
from anchorscope.run_folder.samples import evidence_name

_WORDS = ("True", "False")


def read_p_true(shards: Shards, prompts: PromptMaker) -> None:
    """Store P(True) of every answer that has a probe position in evidence/ptrue."""

    def work(number: int, dataset: str, samples: list[Sample]) -> None:
        shares = p_true(shards, samples, style=prompts.style)
        shards.save_table(
            "ptrue", number, pd.DataFrame({"id": list(shares), "p_true": shares.values()})
        )

    shards.each("P(True)", lambda n: [evidence_name("ptrue", n)], work)


def p_true(shards: Shards, samples: Sequence[Sample], *, style: str) -> dict[str, float]:
    """P("True") as a share of P("True") + P("False"), by question."""
    lease, model = shards.lease, shards.lease.model
    if not samples:
        return {}
    prompts = make_prompts(model, [true_or_false_prompt(s) for s in samples], shots=(), style=style)
    tokens_by_id = {s.id: prompt.ids for s, prompt in zip(samples, prompts, strict=True)}
    stop = min(map(len, tokens_by_id.values())) - 1
    prefix = read_prefix(lease, shared_prefix(list(tokens_by_id.values()), stop=stop))
    true, false = (_first_tokens(model, word) for word in _WORDS)

    def share(grown: GrownTrunk) -> Tensor:
        assert grown.last.logits is not None
        chance = torch.softmax(grown.last.logits.float(), dim=-1)
        yes, no = chance[:, true].sum(dim=-1), chance[:, false].sum(dim=-1)
        return (yes / (yes + no)).cpu()

    shares_by_id: dict[str, float] = {}
    for batch, shares in over_prompts(
        lease, prefix, tokens_by_id, share, budget=Budget.of(model), head=True
    ):
        shares_by_id |= dict(zip(batch, shares.tolist(), strict=True))
    return {id: shares_by_id[id] for id in tokens_by_id}


def true_or_false_prompt(sample: Sample) -> str:
    """The P(True) prompt: the model is asked whether its own answer is true."""
    return (
        f"{sample.question.text}\nProposed answer: {sample.answer.text}\n"
        "Is the proposed answer true? Answer True or False."
    )


def _first_tokens(model: Model, word: str) -> list[int]:
    """The first tokens of a word, with or without a leading space, capitalised or not."""
    coded = (
        model.tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (word, f" {word}", word.lower(), f" {word.lower()}")
    )
    tokens = sorted({ids[0] for ids in coded if ids})
    if not tokens:
        raise UserError(f"The tokenizer of {model.name} cannot write '{word}'.")
    return tokens


PIECE = Piece(passes=lambda config: reweightings(), stages=("P(True)",), read=read_p_true)
