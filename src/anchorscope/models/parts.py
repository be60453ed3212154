"""One name for the same part in every architecture, found by shape rather than by model name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from anchorscope.errors import UserError


@dataclass(frozen=True)
class Parts:
    """The parts of a decoder that anchorscope touches."""

    decoder: nn.Module  # token ids -> last hidden state, without the head
    blocks: tuple[nn.Module, ...]  # block k, counted from 1, is blocks[k - 1]
    attentions: tuple[nn.Module, ...]  # one in each block
    head: nn.Module  # last hidden state -> logits
    width: int


def find_parts(lm: PreTrainedModel) -> Parts:
    """The parts of a causal language model; an error says what was looked for and not found."""
    config = lm.config.get_text_config()
    decoder = lm.get_decoder()
    head = lm.get_output_embeddings()
    blocks = _blocks(decoder, config.num_hidden_layers) if decoder is not None else None
    if decoder is None or head is None or blocks is None:
        raise UserError(
            f"{type(lm).__name__} is not understood: a decoder with a list of "
            f"{config.num_hidden_layers} blocks and an output head is needed. "
            "Give a causal language model of transformers."
        )
    return Parts(
        decoder=decoder,
        blocks=blocks,
        attentions=tuple(_attention(block) for block in blocks),
        head=head,
        width=config.hidden_size,
    )


def _blocks(decoder: nn.Module, count: int) -> tuple[nn.Module, ...] | None:
    lists = (child for child in decoder.modules() if isinstance(child, nn.ModuleList))
    return next((tuple(found) for found in lists if len(found) == count), None)


def _attention(block: nn.Module) -> nn.Module:
    """The submodule of a block whose forward takes an attention mask."""
    for module in block.modules():
        if module is not block and "attention_mask" in inspect.signature(module.forward).parameters:
            return module
    raise UserError(
        f"No attention that takes a mask was found in a block of type {type(block).__name__}: "
        "information flows around the attention layers there, and a knockout could not stop it. "
        "Give a model whose blocks all attend through transformers' masks."
    )
