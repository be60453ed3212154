"""The model, lent for one `with` block: our attention in, states out, and everything put back."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from anchorscope.engine.attention import NAME, View
from anchorscope.engine.layout import Layout
from anchorscope.models import Model

Pairs = list[tuple[Tensor, Tensor]]


class Read(NamedTuple):
    """What a pass gives: states after every block at the last column, and logits if asked for."""

    states: Tensor  # [row, layer, width]
    logits: Tensor | None  # [row, vocabulary]


class Lease:
    """A model whose attention is ours until the `with` block ends.

    Nothing stays on the model: its attention implementation and training flag are restored and
    every hook is removed, whatever happens inside.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._layout: Layout | None = None
        self._prefix: Pairs | None = None
        self._states: list[Tensor] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Lease:
        lm, parts = self.model.lm, self.model.parts
        self._before = (lm.config._attn_implementation, lm.training)
        try:
            lm.eval()
            lm.set_attn_implementation(NAME)
            for block, attention in enumerate(parts.attentions):
                self._hooks.append(self._show_view(attention, block))
            for block in parts.blocks:
                self._hooks.append(block.register_forward_hook(self._keep_state))
            self._hooks.append(parts.head.register_forward_pre_hook(_contiguous))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self.model.lm.set_attn_implementation(self._before[0])
        self.model.lm.train(self._before[1])

    @torch.no_grad()
    def run(
        self,
        ids: Tensor,
        layout: Layout,
        cache: Cache,
        *,
        prefix: Pairs | None = None,
        head: bool = False,
    ) -> Read:
        """The states of every layer at the last column, and its logits where `head` is asked for."""
        self._layout, self._prefix, self._states = layout, prefix, []
        given = {
            "input_ids": ids,
            "position_ids": layout.query_at.clamp(min=0),
            "past_key_values": cache,
            "use_cache": True,
        }
        try:
            if head:
                logits = self.model.lm(**given, logits_to_keep=1).logits[:, -1]
            else:
                # The head over all positions would cost more than a tenth of the pass.
                logits = None
                self.model.parts.decoder(**given)
            return Read(torch.stack(self._states, dim=1), logits)
        finally:
            self._layout, self._prefix, self._states = None, None, []

    def _show_view(self, attention: nn.Module, block: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            assert self._layout is not None
            prefix = None if self._prefix is None else self._prefix[block]
            return args, {**kwargs, "view": View(self._layout, block, prefix)}

        return attention.register_forward_pre_hook(hook, with_kwargs=True)

    def _keep_state(self, module: nn.Module, args: tuple, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        self._states.append(hidden[:, -1].clone())


def _contiguous(module: nn.Module, args: tuple) -> tuple:
    """A contiguous input: bfloat16 on a CPU is hundreds of times slower on a slice."""
    return (args[0].contiguous(), *args[1:])
