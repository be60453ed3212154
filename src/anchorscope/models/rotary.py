"""Rotary position embeddings whose angles depend on the length of the whole pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from anchorscope.errors import UserError


def rotary_switch(lm: nn.Module) -> int | None:
    """How many tokens a row may have before the angles of all rows of its pass change.

    None where they depend on positions alone. `longrope` (Phi-3 and later) takes other frequencies
    for a pass that is longer than the length it was first trained on, `dynamic` for one longer than
    its window.
    """
    return min((switch for module in lm.modules() for switch in _switches(module)), default=None)


def longest_row(lm: nn.Module) -> int | None:
    """How many tokens a prompt and its answer may have together, as far as the model says."""
    config: Any = getattr(lm, "config", None)
    most = getattr(config and config.get_text_config(), "max_position_embeddings", None)
    return min((of for of in (most, rotary_switch(lm)) if of is not None), default=None)


def check_row(lm: nn.Module, name: str, tokens: int) -> None:
    """Raises a UserError where a row of so many tokens would change the angles of others."""
    switch = rotary_switch(lm)
    if switch is not None and tokens > switch:
        raise row_too_long(name, switch, tokens)


def row_too_long(name: str, switch: int, tokens: int) -> UserError:
    """What is wrong with a row beyond the switch."""
    return UserError(
        f"{name} reads rows of up to {switch} tokens exactly: in longer passes its rotary "
        f"embedding turns every row by other angles. {tokens} were given. Shorten the "
        "question, give fewer --shots, or lower --max-tokens."
    )


def _switches(module: Any) -> Iterator[int]:
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
            # At exactly its window, transformers keeps what a longer pass has left behind.
            yield module.original_max_seq_len - 1
