"""Find the blocks, attentions and head of a decoder, and how long its rows may be."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from anchorscope.errors import UserError


@dataclass(frozen=True)
class Parts:
    """The modules of a decoder that anchorscope reads or changes, and its width."""

    decoder: nn.Module  # token ids -> last hidden state, without the head
    blocks: tuple[nn.Module, ...]  # block k, counted from 1, is blocks[k - 1]
    attentions: tuple[nn.Module, ...]  # one in each block
    head: nn.Module  # last hidden state -> logits
    width: int


def find_parts(lm: PreTrainedModel) -> Parts:
    """Find the decoder, blocks, attentions and head of a causal language model."""
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


# --- Rotary embeddings whose angles depend on the length of the whole pass ---


def rotary_switch(lm: nn.Module) -> int | None:
    """The longest row, in tokens, that does not change the rotary angles of its whole pass.

    None where the angles depend on positions alone. `longrope` (Phi-3 and later) takes other
    frequencies for a pass longer than the length it was first trained on, `dynamic` for one longer
    than its window.
    """
    return min((switch for module in lm.modules() for switch in _switches(module)), default=None)


def longest_row(lm: nn.Module) -> int | None:
    """The most tokens of a prompt and its answer together; None where the model names no bound."""
    config: Any = getattr(lm, "config", None)
    window = getattr(config and config.get_text_config(), "max_position_embeddings", None)
    bounds = (window, rotary_switch(lm))
    return min((bound for bound in bounds if bound is not None), default=None)


def check_row(lm: nn.Module, name: str, tokens: int) -> None:
    """Raise a UserError where a row is long enough to change the rotary angles of others."""
    switch = rotary_switch(lm)
    if switch is not None and tokens > switch:
        raise row_too_long(name, switch, tokens)


def row_too_long(name: str, switch: int, tokens: int) -> UserError:
    """Make the error for a row that is longer than `rotary_switch` allows."""
    return UserError(
        f"{name} reads rows of up to {switch} tokens exactly: in longer passes its rotary "
        f"embedding turns every row by other angles. {tokens} were given. Shorten the "
        "question, give fewer --shots, or lower --max-tokens."
    )


def _switches(module: Any) -> Iterator[int]:
    """Yield the row bounds of one rotary embedding, one for each kind of layer that has its own."""
    kinds = module.__dict__.get("rope_type")
    config = getattr(module, "config", None)
    if kinds is None or config is None:
        return
    parameters = getattr(config, "rope_parameters", None) or {}
    # Some models have a kind for each type of layer.
    for layer, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
        own = (parameters if layer is None else parameters.get(layer)) or {}
        if kind == "longrope":
            name = "original_max_position_embeddings"
            yield own.get(name) or getattr(config, name, None) or config.max_position_embeddings
        elif "dynamic" in str(kind):
            # At exactly its window, transformers keeps the frequencies of an earlier, longer pass.
            yield module.original_max_seq_len - 1
