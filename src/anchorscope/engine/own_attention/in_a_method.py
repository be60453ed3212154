"""Models that keep their attention in a method `_attn`: GPT-J, CodeGen, GPT-Neo and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from anchorscope.engine.attention import attend
from anchorscope.engine.masks import Rule, checked

# By class: what scores are multiplied with before the softmax.
SCALES: dict[str, Callable[[Any], float]] = {
    "GPTJAttention": lambda module: 1 / float(module.scale_attn),
    "CodeGenAttention": lambda module: 1 / float(module.scale_attn),
    "GPTNeoSelfAttention": lambda module: 1.0,
    "GPTNeoXJapaneseAttention": lambda module: 1 / float(module.norm_factor),
}


def ours(module: nn.Module) -> Any:
    """Our attention in the shape of a module's own `_attn`."""
    scaling = SCALES[type(module).__name__](module)

    def attn(query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None) -> Any:
        rule = _local(module, checked(attention_mask, module))
        out, weights = attend(module, query, key, value, rule, scaling=scaling)
        return out.transpose(1, 2), weights

    return attn


def _local(module: Any, rule: Rule) -> Rule:
    """The rule together with the table of a layer that looks back only so far, where it has one."""
    table = getattr(module, "bias", None)
    if not isinstance(table, Tensor) or table.dim() != 4:
        return rule

    def both(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return rule.function(batch, head, query, key) & table[0, 0].bool()[query, key]

    return Rule(both)
