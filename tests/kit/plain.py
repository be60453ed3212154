"""Reference for interventions: stock attention, whole prompts, masks edited in hooks.

Independent of the engine on purpose: the model builds its own mask (a float, a boolean, or none
at all), and a hook on each attention removes the edges from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from anchorscope.models import Model

Cut = Callable[[int, int, int, int], bool]  # row, block from 1, query position, key position


def plain_states(
    model: Model,
    rows: Sequence[Sequence[int]],
    cut: Cut = lambda row, block, query, key: False,
    *,
    attention: str = "eager",
    side: str = "left",
) -> Tensor:
    """States [row, layer, width] after every block at each row's last token."""
    return _plain_pass(model, rows, cut, attention, side)[0]


def plain_logits(
    model: Model,
    rows: Sequence[Sequence[int]],
    cut: Cut = lambda row, block, query, key: False,
) -> list[Tensor]:
    """The logits [token, vocabulary] at every position of each row."""
    return _plain_pass(model, rows, cut, "eager", "left")[1]


def _plain_pass(
    model: Model, rows: Sequence[Sequence[int]], cut: Cut, attention: str, side: str
) -> tuple[Tensor, list[Tensor]]:
    width = max(len(row) for row in rows)
    pads = [width - len(row) for row in rows]
    left = [pad if side == "left" else 0 for pad in pads]
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    for number, row in enumerate(rows):
        ids[number, left[number] : left[number] + len(row)] = torch.tensor(list(row))
        mask[number, left[number] : left[number] + len(row)] = 1
    last = torch.tensor([left[n] + len(row) - 1 for n, row in enumerate(rows)])
    at = (mask.cumsum(1) - 1).clamp(min=0).long()
    kept: list[Tensor] = []
    before = model.lm.config._attn_implementation
    model.lm.set_attn_implementation(attention)
    with ExitStack() as stack, torch.no_grad():
        stack.callback(model.lm.set_attn_implementation, before)
        for number, module in enumerate(model.parts.attentions):
            hook = _mask_hook(number + 1, cut, left, [len(row) for row in rows], width)
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for block in model.parts.blocks:
            stack.callback(block.register_forward_hook(_keep(kept, last)).remove)
        out = model.lm(input_ids=ids, attention_mask=mask, position_ids=at, use_cache=False)
    logits = [out.logits[n, left[n] : left[n] + len(row)] for n, row in enumerate(rows)]
    return torch.stack(kept, dim=1), logits


def eager_mass(model: Model, ids: Sequence[int]) -> tuple[float, ...]:
    """The last token's attention weights, mean over blocks and heads, by output_attentions."""
    before = model.lm.config._attn_implementation
    model.lm.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.lm(torch.tensor([list(ids)]), output_attentions=True)
    model.lm.set_attn_implementation(before)
    return tuple(torch.stack([w[0, :, -1].mean(0) for w in out.attentions]).mean(0).tolist())


def _keep(kept: list[Tensor], last: Tensor):
    def hook(module, args, output):
        hidden = output[0] if isinstance(output, tuple | list) else output
        kept.append(hidden[torch.arange(len(last)), last])

    return hook


def _mask_hook(block: int, cut: Cut, left: list[int], lengths: list[int], width: int):
    def hook(module, args, kwargs):
        mask = kwargs["attention_mask"]
        if mask is None:  # causal and nothing else
            mask = torch.ones(width, width, dtype=torch.bool).tril()[None, None]
        mask = mask.expand(len(left), -1, -1, -1).clone()
        # A token attends to itself: this shows whether True in a boolean mask allows or forbids.
        sees = mask[0, 0, left[0], left[0]]
        gone = ~sees if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        for row, start in enumerate(left):
            edges = [(q, k) for q in range(lengths[row]) for k in range(q) if cut(row, block, q, k)]
            if edges:
                queries, keys = (torch.tensor(ends) + start for ends in zip(*edges, strict=True))
                mask[row, :, queries, keys] = gone
        return args, {**kwargs, "attention_mask": mask}

    return hook
